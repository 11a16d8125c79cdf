#include "engine/backend/cuda/capture.h"

#include "engine/backend/cuda/status.h"

namespace polygrad::cuda {
namespace {

// The work that a stream is given while `work` runs. Relaxed: the allocator may ask the runtime for memory meanwhile.
cudaGraph_t record(const std::function<void()>& work, int pool) {
  Context& own = context();
  const cudaStream_t stream = own.stream().handle;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
  own.pool = pool;
  cudaGraph_t graph = nullptr;
  try {
    work();
  } catch (...) {
    own.pool = 0;
    if (cudaStreamEndCapture(stream, &graph) == cudaSuccess && graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();
    throw;
  }
  own.pool = 0;
  check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  return graph;
}

}  // namespace

Graph::Graph(const std::function<void()>& work)
    : device_(context().device()), pool_(open_pool(device_)), stream_(context().stream()) {
  try {
    const cudaGraph_t graph = record(work, pool_);
    const cudaError_t status = cudaGraphInstantiate(&exec_, graph, 0);
    cudaGraphDestroy(graph);
    check(status, "cudaGraphInstantiate");
  } catch (...) {
    close_pool(device_, pool_, stream_.id);
    throw;
  }
}

Graph::~Graph() {
  cudaStreamSynchronize(stream_.handle);  // it may be running
  cudaGraphExecDestroy(exec_);
  close_pool(device_, pool_, stream_.id);
}

void Graph::launch() const { check(cudaGraphLaunch(exec_, context().stream().handle), "cudaGraphLaunch"); }

}  // namespace polygrad::cuda
