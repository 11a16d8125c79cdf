// What the two files that call oneDNN share.
#pragma once

namespace polygrad::cpu {

// oneDNN takes its number of threads from OpenMP's per-thread setting. Our blocks already run in parallel, so it must
// be 1 while oneDNN computes, and while it makes a primitive, whose blocking depends on it; and the calling thread may
// be the host's own, so it must be the host's again afterwards.
class OneOpenMpThread {
 public:
  OneOpenMpThread();
  ~OneOpenMpThread();
  OneOpenMpThread(const OneOpenMpThread&) = delete;
  OneOpenMpThread& operator=(const OneOpenMpThread&) = delete;

 private:
  int previous_;
};

}  // namespace polygrad::cpu
