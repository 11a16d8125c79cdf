# The GPU backend: asked for and not to be had is an error, never a silent CPU build.
include(CheckLanguage)
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  foreach(root IN ITEMS ${CUDAToolkit_ROOT} $ENV{CUDAToolkit_ROOT})
    if(EXISTS ${root}/bin/nvcc)
      set(CMAKE_CUDA_COMPILER ${root}/bin/nvcc)
      break()
    endif()
  endforeach()
endif()
# Machine code for Ampere and Hopper, and PTX, which a driver compiles for what comes later.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90 CACHE STRING "GPU architectures to compile for")
endif()
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "polygrad: POLYGRAD_CUDA=ON, but no CUDA compiler was found. Install the CUDA Toolkit (12 or newer) "
                      "and name it with -DCMAKE_CUDA_COMPILER=/path/to/nvcc, the environment variable CUDACXX, or "
                      "-DCUDAToolkit_ROOT=/path; or configure with -DPOLYGRAD_CUDA=OFF.")
endif()
if(polygrad_top_level AND POLYGRAD_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()
enable_language(CUDA)
# nvcc 12 knows C++20; CMake before 3.26 doesn't know that it does.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12)
  message(FATAL_ERROR "polygrad: POLYGRAD_CUDA=ON needs the CUDA Toolkit 12 or newer; ${CMAKE_CUDA_COMPILER} is "
                      "${CMAKE_CUDA_COMPILER_VERSION}. Name another with -DCMAKE_CUDA_COMPILER=/path/to/nvcc.")
endif()
find_package(CUDAToolkit 12 REQUIRED)

# What --version and the message "this build has kernels for …" say: "sm_80, sm_90".
string(REGEX REPLACE "-(real|virtual)" "" polygrad_architectures "${CMAKE_CUDA_ARCHITECTURES}")
list(REMOVE_DUPLICATES polygrad_architectures)
list(TRANSFORM polygrad_architectures PREPEND "sm_")
list(JOIN polygrad_architectures ", " polygrad_architectures)

# polygrad_cuda_objects(engine a.cpp b.cu …): target polygrad_engine_cuda, whose objects the library polygrad_engine takes.
# They come as objects, not as sources, so that CUDA is no language of the library: an application needs no nvcc.
function(polygrad_cuda_objects library)
  set(target polygrad_${library}_cuda)
  add_library(${target} OBJECT ${ARGN})
  polygrad_compile_settings(${target})
  set_target_properties(${target} PROPERTIES CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  target_include_directories(${target} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  target_compile_definitions(${target} PRIVATE POLYGRAD_CUDA_ARCHITECTURES="${polygrad_architectures}")
  # As on the CPU, a fused multiply-add stands where it is written: --fmad=false.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--fmad=false --expt-relaxed-constexpr
                                           -Xcompiler=-Wall,-Wextra>)
  if(POLYGRAD_WERROR)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings>)
  endif()
  polygrad_use(${target} fmt)
  target_sources(polygrad_${library} PRIVATE $<TARGET_OBJECTS:${target}>)
endfunction()
