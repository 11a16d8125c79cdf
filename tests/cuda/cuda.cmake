# test_cuda: the runtime and the kernels of a GPU against those of the CPU. test_cuda_training: runs on one.
set(cuda_tests
  cuda/attention_mma_test.cpp
  cuda/kernels_test.cpp
  cuda/narrow_test.cpp
  cuda/runtime_test.cpp
  cuda/support_test.cpp
  cuda/table_test.cpp
)
set(cuda_training_tests cuda/capture_test.cpp cuda/precision_test.cpp cuda/training_test.cpp)
if(POLYGRAD_CUDA)
  polygrad_test(test_cuda USES ops SOURCES ${cuda_tests} SUPPORT ${op_table_sources})
  polygrad_test(test_cuda_training USES training SOURCES ${cuda_training_tests})
  return()
endif()

# The same files that nvcc compiles, here by the C++ compiler. They take the place of the no_cuda files of our libraries.
set(host_cuda_sources "")
foreach(source IN LISTS polygrad_engine_cuda_sources)
  list(APPEND host_cuda_sources ${PROJECT_SOURCE_DIR}/engine/${source})
endforeach()
foreach(source IN LISTS polygrad_ops_cuda_sources)
  list(APPEND host_cuda_sources ${PROJECT_SOURCE_DIR}/ops/${source})
endforeach()
list(APPEND host_cuda_sources ${CMAKE_CURRENT_SOURCE_DIR}/cuda/host/gemm.cu)
set_source_files_properties(${host_cuda_sources} PROPERTIES LANGUAGE CXX)
add_library(host_cuda OBJECT cuda/host/fibers.cpp cuda/host/runtime.cpp ${host_cuda_sources})
polygrad_compile_settings(host_cuda)
target_include_directories(host_cuda PRIVATE cuda/host/include ${PROJECT_SOURCE_DIR})
target_compile_definitions(host_cuda PRIVATE POLYGRAD_HOST_CUDA POLYGRAD_CUDA_ARCHITECTURES="sm_90")
target_compile_options(host_cuda PRIVATE -Wno-unknown-pragmas)
polygrad_use(host_cuda fmt)

polygrad_test(test_cuda USES ops SOURCES
  ${cuda_tests}
  cuda/host/host_test.cpp
  cuda/host/mma_test.cpp
  SUPPORT
  ${op_table_sources}
  $<TARGET_OBJECTS:host_cuda>
)
polygrad_test(test_cuda_training USES training SOURCES ${cuda_training_tests} SUPPORT $<TARGET_OBJECTS:host_cuda>)
foreach(program IN ITEMS test_cuda test_cuda_training)
  target_include_directories(${program} BEFORE PRIVATE cuda/host/include)
  target_compile_definitions(${program} PRIVATE POLYGRAD_HOST_CUDA)
  target_compile_options(${program} PRIVATE -Wno-unknown-pragmas)
endforeach()

# The programs, on the CPU's CUDA runtime: they have a cuda:0, and tests/gpu/check.sh --cpu runs them as if it were a GPU.
foreach(program IN ITEMS polygrad_bench vit_train)
  add_executable(host_${program} $<TARGET_OBJECTS:${program}> $<TARGET_OBJECTS:host_cuda>)
  polygrad_compile_settings(host_${program})
  target_link_libraries(host_${program} PRIVATE polygrad_training)
endforeach()
