# aggml_c: language, warnings, definitions and libraries of every C target; sanitizers of all targets.
# Not here: instruction sets (isa.cmake).

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

set(c_flags
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wvla
  # Rounding is part of what a kernel promises: multiply and add fuse only where an intrinsic or fmaf says so.
  -ffp-contract=off
  # Nobody reads errno or the floating-point status word; without these two GCC leaves such loops scalar.
  -fno-math-errno -fno-trapping-math)
if(AGGML_WERROR)
  list(APPEND c_flags -Werror)
endif()

find_package(Threads REQUIRED)
add_library(aggml_c INTERFACE)
target_compile_options(aggml_c INTERFACE "$<$<COMPILE_LANGUAGE:C>:${c_flags}>")
# Clocks, affinity, eventfd under strict C11; empty, as files that define it themselves have it.
target_compile_definitions(aggml_c INTERFACE $<$<COMPILE_LANGUAGE:C>:_GNU_SOURCE=>)
target_include_directories(aggml_c INTERFACE ${native})
target_link_libraries(aggml_c INTERFACE Threads::Threads m)

if(AGGML_SANITIZE)
  # -O1, behind the flags of the build type: with -O2 and ASan kernels/amd512/flash_heads.c alone took 7 minutes to compile,
  # now 2 s. -g1: reports name functions and lines.
  add_compile_options(-fsanitize=${AGGML_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -O1 -g1)
  # Checks in every copy of a function made cc1 take minutes and gigabytes for a file; see inline.h.
  target_compile_definitions(aggml_c INTERFACE AGK_NO_UNROLL)
  # Loops that fill and loops that read are of one length, which is seen only where both are unrolled.
  target_compile_options(aggml_c INTERFACE $<$<C_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  # GCC's checks on shifts and divisions hide the range of a value from -Wconversion, which then warns of the impossible.
  target_compile_options(aggml_c INTERFACE "$<$<COMPILE_LANGUAGE:C>:-Wno-conversion>")
  add_link_options(-fsanitize=${AGGML_SANITIZE})
endif()
