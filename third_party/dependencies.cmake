# Finds each third-party library. Order: POLYGRAD_DEPS_DIR, an installed package, a download (POLYGRAD_FETCH=ON only).
# Leaves POLYGRAD_<NAME>_INCLUDE_DIR for the header-only ones (see polygrad_use in cmake/targets.cmake).

# polygrad_find_header(NAME header package SUFFIXES …): sets POLYGRAD_<NAME>_INCLUDE_DIR or stops with advice.
function(polygrad_find_header name header package)
  cmake_parse_arguments(ARG "" "" "SUFFIXES" ${ARGN})
  set(variable POLYGRAD_${name}_INCLUDE_DIR)
  set(suffixes ${ARG_SUFFIXES} include)
  if(POLYGRAD_DEPS_DIR)
    string(TOLOWER ${name} lower)
    find_path(${variable} ${header} PATHS ${POLYGRAD_DEPS_DIR} ${POLYGRAD_DEPS_DIR}/${lower}
              PATH_SUFFIXES ${suffixes} NO_DEFAULT_PATH)
  endif()
  find_path(${variable} ${header} PATH_SUFFIXES ${suffixes})
  mark_as_advanced(${variable})
  if(NOT ${variable} AND POLYGRAD_FETCH)
    include(${PROJECT_SOURCE_DIR}/third_party/fetch.cmake)
    polygrad_fetch(${name})
  endif()
  if(NOT ${variable})
    message(FATAL_ERROR "polygrad: <${header}> was not found, neither in POLYGRAD_DEPS_DIR ('${POLYGRAD_DEPS_DIR}') nor in "
                        "the compiler's and CMAKE_PREFIX_PATH's folders. Install it (Debian: apt-get install ${package}, "
                        "or run third_party/install_debian.sh), name its folder with -D${variable}=…, or allow a "
                        "download with -DPOLYGRAD_FETCH=ON.")
  endif()
endfunction()

polygrad_find_header(FMT fmt/core.h libfmt-dev)
if("ops" IN_LIST POLYGRAD_COMPONENTS)
  polygrad_find_header(EIGEN Eigen/Core libeigen3-dev SUFFIXES eigen3 include/eigen3)
endif()
polygrad_find_header(JSON nlohmann/json.hpp nlohmann-json3-dev)
if("data" IN_LIST POLYGRAD_COMPONENTS)
  polygrad_find_header(STB stb_image.h libstb-dev SUFFIXES stb include/stb)
endif()
if(POLYGRAD_BUILD_APPS)
  polygrad_find_header(CLI11 CLI/CLI.hpp libcli11-dev)
endif()
if(POLYGRAD_BUILD_TESTS)
  polygrad_find_header(DOCTEST doctest/doctest.h doctest-dev)
endif()

# oneDNN: a compiled library, and the OpenMP runtime it works with (whose thread count we set around each call).
set(POLYGRAD_HAVE_ONEDNN OFF)
if("ops" IN_LIST POLYGRAD_COMPONENTS AND NOT POLYGRAD_ONEDNN STREQUAL "OFF")
  find_path(POLYGRAD_ONEDNN_INCLUDE_DIR dnnl.h HINTS ${POLYGRAD_DEPS_DIR} PATH_SUFFIXES include)
  find_library(POLYGRAD_ONEDNN_LIBRARY dnnl HINTS ${POLYGRAD_DEPS_DIR} PATH_SUFFIXES lib)
  find_library(POLYGRAD_GOMP_LIBRARY NAMES gomp libgomp.so.1 PATHS ${CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES})
  mark_as_advanced(POLYGRAD_ONEDNN_INCLUDE_DIR POLYGRAD_ONEDNN_LIBRARY POLYGRAD_GOMP_LIBRARY)
  if(POLYGRAD_ONEDNN_INCLUDE_DIR AND POLYGRAD_ONEDNN_LIBRARY AND POLYGRAD_GOMP_LIBRARY)
    set(POLYGRAD_HAVE_ONEDNN ON)
  elseif(POLYGRAD_ONEDNN STREQUAL "ON")
    message(FATAL_ERROR "polygrad: POLYGRAD_ONEDNN=ON, but dnnl.h (${POLYGRAD_ONEDNN_INCLUDE_DIR}), libdnnl "
                        "(${POLYGRAD_ONEDNN_LIBRARY}) or libgomp (${POLYGRAD_GOMP_LIBRARY}) was not found. Install it "
                        "(Debian: apt-get install libdnnl-dev), name its folder with -DPOLYGRAD_DEPS_DIR=…, or configure "
                        "with -DPOLYGRAD_ONEDNN=OFF.")
  endif()
endif()

# libjpeg-turbo's own interface, which shares no symbol with whatever libjpeg an application has.
set(POLYGRAD_HAVE_TURBOJPEG OFF)
if("data" IN_LIST POLYGRAD_COMPONENTS AND NOT POLYGRAD_TURBOJPEG STREQUAL "OFF")
  find_path(POLYGRAD_TURBOJPEG_INCLUDE_DIR turbojpeg.h HINTS ${POLYGRAD_DEPS_DIR} PATH_SUFFIXES include)
  find_library(POLYGRAD_TURBOJPEG_LIBRARY turbojpeg HINTS ${POLYGRAD_DEPS_DIR} PATH_SUFFIXES lib)
  mark_as_advanced(POLYGRAD_TURBOJPEG_INCLUDE_DIR POLYGRAD_TURBOJPEG_LIBRARY)
  if(POLYGRAD_TURBOJPEG_INCLUDE_DIR AND POLYGRAD_TURBOJPEG_LIBRARY)
    set(POLYGRAD_HAVE_TURBOJPEG ON)
  elseif(POLYGRAD_TURBOJPEG STREQUAL "ON")
    message(FATAL_ERROR "polygrad: POLYGRAD_TURBOJPEG=ON, but turbojpeg.h (${POLYGRAD_TURBOJPEG_INCLUDE_DIR}) or "
                        "libturbojpeg (${POLYGRAD_TURBOJPEG_LIBRARY}) was not found. Install it (Debian: apt-get install "
                        "libturbojpeg0-dev), name its folder with -DPOLYGRAD_DEPS_DIR=…, or configure with "
                        "-DPOLYGRAD_TURBOJPEG=OFF: stb_image decodes JPEG then.")
  endif()
endif()

# Links a compiled library privately. Where it lies in the linker's own folders it is named, not pointed at, so that the
# installed package holds no path of this machine.
function(polygrad_link_system_library target file name)
  get_filename_component(folder ${file} REALPATH)
  get_filename_component(folder ${folder} DIRECTORY)
  set(implicit "")
  foreach(directory IN LISTS CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES)
    get_filename_component(directory ${directory} REALPATH)
    list(APPEND implicit ${directory})
  endforeach()
  if(folder IN_LIST implicit)
    target_link_libraries(${target} PRIVATE ${name})
  else()
    target_link_libraries(${target} PRIVATE ${file})
  endif()
endfunction()
