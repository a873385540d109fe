# Object libraries of C sources, and one per instruction set with flags of its own.
#
# AGK_BUILD_<ISA> is defined for all C files when the folder has sources and the compiler targets the architecture
# and knows the flags. Where it is not defined, the ISA's lines of kernels.def must expand to nothing.
include(CheckCSourceCompiles)

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
  check_c_source_compiles("
    #ifndef ${architecture}
    #error another architecture
    #endif
    int main(void) { return 0; }" AGK_BUILD_${upper})
  if(AGK_BUILD_${upper})
    aggml_objects(${name} ${sources})
    target_compile_options(aggml_${name} PRIVATE ${ARGN})
    if(AGGML_SANITIZE MATCHES address)
      # What GCC moves from the stack to see it used later lies on 32 bytes (GCC's bug 110027): vectors of 64 fault.
      target_compile_options(aggml_${name} PRIVATE $<$<C_COMPILER_ID:GNU>:--param=asan-use-after-return=0>)
    endif()
    target_compile_definitions(aggml_c INTERFACE AGK_BUILD_${upper}=1)
  endif()
endfunction()

# Each row of the table that has an architecture of its own.
function(aggml_isas table)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${table})
  set(X86 __x86_64__)
  set(ARM __aarch64__)
  file(READ ${table} text)
  string(REGEX REPLACE "[ \n]+" " " text "${text}") # a row may be several lines
  string(REGEX MATCHALL "AGK_ISA\\([a-z0-9_]+, (X86|ARM),[^)]*\\)" rows "${text}")
  foreach(row IN LISTS rows)
    string(REGEX MATCH "^AGK_ISA\\(([a-z0-9_]+), (X86|ARM), [^,]*, [^,]*, [^,]*, ?([^)]*)\\)$" whole "${row}")
    if(NOT whole)
      message(FATAL_ERROR "isas.def: not understood: ${row}")
    endif()
    separate_arguments(flags UNIX_COMMAND "${CMAKE_MATCH_3}")
    aggml_isa(${CMAKE_MATCH_1} ${${CMAKE_MATCH_2}} ${flags})
  endforeach()
endfunction()
