# Object libraries of C sources, and one per instruction set with flags of its own.
#
# AGK_BUILD_<ISA> is defined for all C files when the folder has sources and the compiler targets the architecture
# and knows the flags. Where it is not defined, the ISA's lines of kernels.def must expand to nothing.
include(CheckCSourceCompiles)

# Intrinsics are 0.35 s of each file that includes them, a third of what the small ones take. They are parsed once for a
# folder, as its flags are part of what is stored. Not behind a launcher: ccache would keep nothing of such files.
function(aggml_precompile target header)
  if(CMAKE_C_COMPILER_ID STREQUAL GNU AND NOT CMAKE_C_COMPILER_LAUNCHER AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    target_precompile_headers(${target} PRIVATE ${header})
  endif()
endfunction()

function(aggml_objects name)
  add_library(aggml_${name} OBJECT ${ARGN})
  target_link_libraries(aggml_${name} PRIVATE aggml_c)
  set_property(GLOBAL APPEND PROPERTY aggml_objects aggml_${name})
endfunction()

# aggml_isa(avx2 __x86_64__ -mavx2 -mfma): the folder's name, the macro of its architecture, its flags.
function(aggml_isa name architecture)
  file(GLOB sources CONFIGURE_DEPENDS ${native}/kernels/${name}/*.c)
  if(NOT sources)
    return()
  endif()
  string(TOUPPER ${name} upper)
  string(JOIN " " CMAKE_REQUIRED_FLAGS ${ARGN})
  # Compiled, not linked: zig would compile all of musl for the flags of each folder, minutes before the first object.
  set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
  check_c_source_compiles("
    #ifndef ${architecture}
    #error another architecture
    #endif
    int main(void) { return 0; }" AGK_BUILD_${upper})
  if(AGK_BUILD_${upper})
    aggml_objects(${name} ${sources})
    target_compile_options(aggml_${name} PRIVATE ${ARGN})
    if(architecture STREQUAL __x86_64__)
      aggml_precompile(aggml_${name} <immintrin.h>)
    else()
      aggml_precompile(aggml_${name} <arm_neon.h>)
    endif()
    if(AGGML_SANITIZE MATCHES address)
      # What GCC moves from the stack to see it used later lies on 32 bytes (GCC's bug 110027): vectors of 64 fault.
      target_compile_options(aggml_${name} PRIVATE $<$<C_COMPILER_ID:GNU>:--param=asan-use-after-return=0>)
    endif()
    target_compile_definitions(aggml_c INTERFACE AGK_BUILD_${upper}=1)
  endif()
endfunction()

# The instruction sets that this machine runs best, as the package itself finds them.
function(aggml_isas_of_machine result)
  try_run(runs compiles ${CMAKE_BINARY_DIR}/machine ${CMAKE_CURRENT_SOURCE_DIR}/cmake/machine.c
    CMAKE_FLAGS -DINCLUDE_DIRECTORIES=${native} COMPILE_DEFINITIONS -D_GNU_SOURCE
    COMPILE_OUTPUT_VARIABLE said RUN_OUTPUT_VARIABLE names)
  if(NOT compiles OR NOT "${runs}" STREQUAL "0")
    message(FATAL_ERROR "AGGML_ISAS=native: the program that asks this machine does not run\n${said}")
  endif()
  set(${result} ${names} PARENT_SCOPE)
endfunction()

# Each row of the table that has an architecture of its own, as far as AGGML_ISAS wants it.
function(aggml_isas table)
  if(AGGML_ISAS STREQUAL "native")
    aggml_isas_of_machine(wanted)
    message(STATUS "Instruction sets of this machine: ${wanted}")
  else()
    string(REPLACE "," ";" wanted "${AGGML_ISAS}")
  endif()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${table})
  set(X86 __x86_64__)
  set(ARM __aarch64__)
  file(READ ${table} text)
  string(REGEX REPLACE "[ \n]+" " " text "${text}") # a row may be several lines
  string(REGEX MATCHALL "AGK_ISA\\([a-z0-9_]+, (X86|ARM),[^)]*\\)" rows "${text}")
  set(names)
  foreach(row IN LISTS rows)
    string(REGEX MATCH "^AGK_ISA\\(([a-z0-9_]+), (X86|ARM), [^,]*, [^,]*, [^,]*, ?([^)]*)\\)$" whole "${row}")
    if(NOT whole)
      message(FATAL_ERROR "isas.def: not understood: ${row}")
    endif()
    list(APPEND names ${CMAKE_MATCH_1})
    if(NOT wanted STREQUAL "all" AND NOT CMAKE_MATCH_1 IN_LIST wanted)
      continue()
    endif()
    separate_arguments(flags UNIX_COMMAND "${CMAKE_MATCH_3}")
    aggml_isa(${CMAKE_MATCH_1} ${${CMAKE_MATCH_2}} ${flags})
  endforeach()
  foreach(name IN LISTS wanted)
    if(NOT name IN_LIST names AND NOT name STREQUAL "all" AND NOT name STREQUAL "scalar")
      message(FATAL_ERROR "AGGML_ISAS is ${AGGML_ISAS}: expected all, native, or some of ${names}, with commas")
    endif()
  endforeach()
endfunction()
