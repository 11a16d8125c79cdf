// gemm_eigen
