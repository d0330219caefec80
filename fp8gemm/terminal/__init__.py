"""What people are shown: tables that fit where they are read, colours, and bars of progress. It knows no GEMM."""
