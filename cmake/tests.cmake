# polygrad_test(name USES … SOURCES … SUPPORT … THIRD_PARTY … LABELS …): see tests/CMakeLists.txt, which lists them all.
function(polygrad_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;SUPPORT;USES;THIRD_PARTY;LABELS" ${ARGN})
  polygrad_program(${name} USES ${ARG_USES} SOURCES main.cpp ${ARG_SOURCES} ${ARG_SUPPORT})
  polygrad_use(${name} doctest ${ARG_THIRD_PARTY})
  foreach(source IN LISTS ARG_SOURCES)
    get_filename_component(area ${source} DIRECTORY)
    get_filename_component(file ${source} NAME_WE)
    string(REPLACE "/" "." test ${area}.${file})
    add_test(NAME ${test} COMMAND ${name} --source-file=*tests/${source})
    # A file without a single test case is a test that got lost.
    set_tests_properties(${test} PROPERTIES FAIL_REGULAR_EXPRESSION "test cases: +0 " TIMEOUT 900
                         LABELS "${ARG_LABELS}" ENVIRONMENT POLYGRAD_SOURCE_DIR=${PROJECT_SOURCE_DIR})
  endforeach()
endfunction()
