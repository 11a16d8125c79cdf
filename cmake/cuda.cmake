# The GPU backend: asked for and not to be had is an error, never a silent CPU build.
include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "polygrad: POLYGRAD_CUDA=ON, but no CUDA compiler was found. Install the CUDA Toolkit (12 or newer) "
                      "and name it with -DCMAKE_CUDA_COMPILER=/path/to/nvcc, the environment variable CUDACXX, or "
                      "-DCUDAToolkit_ROOT=/path; or configure with -DPOLYGRAD_CUDA=OFF.")
endif()
if(NOT EXISTS ${PROJECT_SOURCE_DIR}/engine/backend/cuda)
  message(FATAL_ERROR "polygrad: POLYGRAD_CUDA=ON, but this version has no GPU backend yet; configure with "
                      "-DPOLYGRAD_CUDA=OFF.")
endif()
