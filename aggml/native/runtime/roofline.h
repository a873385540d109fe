/* The peak performance of the machine, measured with 1 to AG_ROOFLINE_THREADS threads of its own. A negative result:
 * not all threads started. */
#ifndef AG_ROOFLINE_H
#define AG_ROOFLINE_H

#include <stddef.h>

enum { AG_ROOFLINE_THREADS = 256 };

/* Operations per second of the variant of kernels.def whose kernel is peak_<name>; 0 if this machine lacks a feature
 * that it needs. */
double ag_roofline_peak(const char *kernel, const char *isa, int n, double seconds);
/* Bytes read per second: `size` bytes in all, an equal share for each thread. If `to` is given: bytes read and
 * written per second. */
double ag_roofline_move(char *to, const char *from, size_t size, int repeats, int n);

#endif
