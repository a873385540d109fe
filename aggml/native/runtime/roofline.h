/* The best that the machine can do, by 1 to AG_ROOFLINE_THREADS threads of their own. Negative: not all of them
 * start. */
#ifndef AG_ROOFLINE_H
#define AG_ROOFLINE_H

#include <stddef.h>

enum { AG_ROOFLINE_THREADS = 256 };

/* Operations per second of a variant of kernels.def whose kernel is peak_<kind>; 0 if this machine has not what it
 * needs. */
double ag_roofline_peak(const char *kernel, const char *isa, int n, double seconds);
/* Bytes read per second, `size` bytes in all, a share for each thread; read and written per second if there is a
 * `to`. */
double ag_roofline_move(char *to, const char *from, size_t size, int repeats, int n);

#endif
