# Each tests/native/*.c is a program that returns 0 when all is well; what they share is in headers beside them.

# `kernels`: those of them that compare variants of kernels; `runtime`: those of streams and threads.
add_custom_target(kernels)
add_custom_target(runtime)
file(GLOB test_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/tests/native/*.c)
foreach(source IN LISTS test_sources)
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE aggml_native)
  add_test(NAME ${name} COMMAND ${name})
  if(name MATCHES "^(kernels|runtime)_")
    add_dependencies(${CMAKE_MATCH_1} ${name})
  endif()
  if(AGGML_SANITIZE AND name MATCHES "^runtime_")
    target_compile_options(${name} PRIVATE -O0) # as the runtime, see CMakeLists.txt
  endif()
  set_tests_properties(${name} PROPERTIES
    TIMEOUT 120
    ENVIRONMENT "ASAN_OPTIONS=detect_stack_use_after_return=1;UBSAN_OPTIONS=print_stacktrace=1;TSAN_OPTIONS=halt_on_error=1")
endforeach()
