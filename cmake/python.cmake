# aggml.native._native: binding/ and nanobind around the native library.

enable_language(CXX)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)

# For another processor or C library (tools/wheels/build.py) it is the interpreter of this machine all the same: it tells where
# the headers lie, which 64-bit Linux shares. CMake from 4.1 on would refuse that.
if(POLICY CMP0190)
  cmake_policy(SET CMP0190 OLD)
endif()
find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module)
find_package(nanobind CONFIG REQUIRED)

# NOMINSIZE: calls through the binding are counted in fractions of a microsecond; its size does not matter.
file(GLOB binding CONFIGURE_DEPENDS ${native}/binding/*.cpp)
# No stable ABI: a submission takes tuples apart, and that has only functions for what are macros here.
# FREE_THREADED: in an interpreter without the GIL the module leaves it off; what it guarded has locks (nb::ft_mutex).
nanobind_add_module(_native NB_STATIC NOMINSIZE FREE_THREADED ${binding})
# nanobind's own sources are compiled as one file, as its nb_combined.cpp does: 9 s of a core instead of 23 for the eleven,
# under sanitizers 14 instead of 29. The rest went into the headers that they share.
foreach(library nanobind-static nanobind-static-ft)
  if(TARGET ${library})
    set_target_properties(${library} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
    if(AGGML_SANITIZE)
      target_compile_options(${library} PRIVATE -O0)
    endif()
  endif()
endforeach()
if(AGGML_SANITIZE)
  # As in CMakeLists.txt. C++ takes two thirds of the time so, nanobind half.
  target_compile_options(_native PRIVATE -O0)
endif()
# What ggml_commit tells; "unknown" if built from an archive.
find_package(Git QUIET)
set(commit unknown)
if(GIT_FOUND)
  execute_process(COMMAND ${GIT_EXECUTABLE} rev-parse --short HEAD WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}
    OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(found)
    set(commit ${found})
  endif()
endif()
set_source_files_properties(${native}/binding/interpreter.cpp PROPERTIES COMPILE_DEFINITIONS "AGGML_COMMIT=\"${commit}\"")
aggml_precompile(_native <nanobind/nanobind.h>)
target_compile_options(_native PRIVATE -Wall -Wextra $<$<BOOL:${AGGML_WERROR}>:-Werror>)
target_link_libraries(_native PRIVATE aggml_native)
install(TARGETS _native LIBRARY DESTINATION aggml/native)
