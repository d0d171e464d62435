"""Chat completions: the API that clients already speak, over conversations that are transactions."""
