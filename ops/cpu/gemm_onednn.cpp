// gemm_onednn
