# What `make cuda-compile` builds: all of the GPU backend, and two programs that need no GPU to start.
add_executable(device_headers EXCLUDE_FROM_ALL tests/cuda/device_headers.cu)
target_include_directories(device_headers PRIVATE ${PROJECT_SOURCE_DIR})
target_compile_options(device_headers PRIVATE --fmad=false -Xcompiler=-Wall,-Wextra)

# The kernel tables need the engine, and of ops/ nothing but the dispatch.
add_executable(cuda_tables EXCLUDE_FROM_ALL tests/cuda/tables.cpp ops/kernels/dispatch.cpp ops/cpu/instructions.cpp
               ops/tf32.cpp
               $<TARGET_OBJECTS:polygrad_ops_cuda>)
polygrad_compile_settings(cuda_tables)
target_include_directories(cuda_tables PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(cuda_tables PRIVATE polygrad_engine CUDA::cublasLt)
polygrad_use(cuda_tables fmt)
add_custom_target(polygrad_cuda_check DEPENDS device_headers cuda_tables)
