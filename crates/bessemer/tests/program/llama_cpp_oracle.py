"""llama.cpp reads what Bessemer exported: greedy text after prompts.

    llama_cpp_oracle.py FILE.gguf < REQUEST    the answer is JSON on standard output

A request is {"prompts": [...], "new": tokens to generate}. xllamacpp carries llama.cpp's server as a wheel.
"""

import json
import os
import sys

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx = 64
params.n_parallel = 1
params.cpuparams.n_threads = 1
params.warmup = False
# Only then do answers hold the ids of all tokens; log-probabilities join those that share a character.
params.verbosity = 10
request = json.load(sys.stdin)
# The server writes its log to standard output.
out = os.dup(1)
os.dup2(2, 1)
server = xllamacpp.Server(params)
answers = []
for prompt in request["prompts"]:
    asked = {"prompt": prompt, "max_tokens": request["new"], "temperature": 0, "cache_prompt": False, "return_tokens": True}
    answers.append(server.handle_completions(asked))
os.write(out, json.dumps(answers).encode())
os._exit(0)
