# How our own targets are compiled. Everything here is PRIVATE to them: no flag, definition or path leaks to a consumer.

# Objects are found again by ccache, also from another clone of the tree.
if(polygrad_top_level AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(POLYGRAD_CCACHE ccache)
  if(POLYGRAD_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
                                    ${POLYGRAD_CCACHE})
  endif()
endif()

if(polygrad_top_level)
  set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
endif()

find_package(Threads REQUIRED)

# The flags that every target of ours has: libraries, programs and tests.
function(polygrad_compile_settings target)
  # A parent's unity build would put files together that are each compiled for themselves (stb, the kernels).
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON UNITY_BUILD OFF
                        POLYGRAD_IN_TREE ON)
  target_compile_features(${target} PUBLIC cxx_std_20)
  # Contraction would make a result depend on which multiply-add the compiler happens to fuse.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -ffp-contract=off>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # False alarms inside std::string's operator+ (GCC bug 105651, fixed in 13).
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
  endif()
  if(POLYGRAD_WERROR)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
  endif()
  if(POLYGRAD_DCHECK)
    target_compile_definitions(${target} PRIVATE POLYGRAD_DCHECK_ENABLED)
  endif()
  if(POLYGRAD_SANITIZE)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${POLYGRAD_SANITIZE}
                                             -fno-omit-frame-pointer -fno-sanitize-recover=all>)
    target_link_options(${target} PRIVATE -fsanitize=${POLYGRAD_SANITIZE})
  endif()
endfunction()

# Third-party headers, for a target's .cpp files. The namespaces are renamed, so that a host's own copy of a library, of
# any version and with any flags, shares no symbol with ours.
function(polygrad_use target)
  foreach(name IN LISTS ARGN)
    string(TOUPPER ${name} upper)
    target_include_directories(${target} SYSTEM PRIVATE ${POLYGRAD_${upper}_INCLUDE_DIR})
    if(name STREQUAL "fmt")
      target_compile_definitions(${target} PRIVATE fmt=polygrad_fmt)
    elseif(name STREQUAL "json")
      target_compile_definitions(${target} PRIVATE nlohmann=polygrad_nlohmann)
    elseif(name STREQUAL "eigen")
      target_compile_definitions(${target} PRIVATE Eigen=polygrad_eigen)
    elseif(name STREQUAL "cli11")
      target_compile_definitions(${target} PRIVATE CLI=polygrad_cli)
    endif()
  endforeach()
endfunction()

# polygrad_library(ops SOURCES a.cpp … USES engine): target polygrad_ops, alias polygrad::ops.
# In our tree a file includes "engine/tensor.h" from the root of the sources; a consumer includes <polygrad/engine/tensor.h>,
# from the headers that cmake/package.cmake exports.
function(polygrad_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;USES" ${ARGN})
  set(target polygrad_${name})
  add_library(${target} ${ARG_SOURCES})
  add_library(polygrad::${name} ALIAS ${target})
  # No DEFINE_SYMBOL: static and shared builds compile the same commands, so that the compiler cache serves both.
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name} DEFINE_SYMBOL "" VERSION ${PROJECT_VERSION}
                        SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  polygrad_compile_settings(${target})
  if(BUILD_SHARED_LIBS)
    # Only names of our namespace leave a shared library: not {fmt}, JSON or Eigen, renamed as they are.
    set_target_properties(${target} PROPERTIES INSTALL_RPATH $ORIGIN
                          LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/exports.map)
    target_link_options(${target} PRIVATE LINKER:--version-script=${PROJECT_SOURCE_DIR}/cmake/exports.map)
  endif()
  target_include_directories(${target}
    PRIVATE ${PROJECT_SOURCE_DIR}
    # Not for our own files, whose commands (and so ccache's keys) stay the same in every build folder.
    INTERFACE $<BUILD_INTERFACE:$<$<NOT:$<BOOL:$<TARGET_PROPERTY:POLYGRAD_IN_TREE>>>:${PROJECT_BINARY_DIR}/include>>
              $<INSTALL_INTERFACE:include>)
  foreach(used IN LISTS ARG_USES)
    if(NOT TARGET polygrad_${used})
      message(FATAL_ERROR "polygrad: the component '${name}' needs '${used}'; add it to POLYGRAD_COMPONENTS")
    endif()
    target_link_libraries(${target} PUBLIC polygrad_${used})
  endforeach()
endfunction()

# polygrad_program(vit_train SOURCES main.cpp … USES training): a program of the tree, in build/bin.
function(polygrad_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;USES" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  polygrad_compile_settings(${name})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  foreach(used IN LISTS ARG_USES)
    target_link_libraries(${name} PRIVATE polygrad_${used})
  endforeach()
endfunction()
