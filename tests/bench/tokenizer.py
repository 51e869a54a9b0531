#!/usr/bin/env python3
"""Times motley's tokenizer and Hugging Face's `tokenizers`, each on one thread, in turn, and prints one line of JSON.

    python3 tests/bench/tokenizer.py build/release/bin/tokenizer_bench VOCAB TEXT [ROUNDS]

VOCAB is a BERT vocabulary (vocab.txt), TEXT a text with a sentence per line. The ids of all lines are compared first.
Of theirs, encode_batch and encode_batch_fast (which gives no places in the text) are timed; the faster counts.
"""
import json
import os
import statistics
import subprocess
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

from transformers import BertTokenizer  # noqa: E402  (reads the environment)


def main():
    program, vocab, text = sys.argv[1:4]
    rounds = int(sys.argv[4]) if len(sys.argv) > 4 else 5
    with open(text, encoding="utf-8", errors="replace", newline="\n") as f:
        lines = f.read().split("\n")
    if lines[-1] == "":
        lines.pop()
    with open(vocab, encoding="utf-8") as f:
        vocabulary = {line.rstrip("\n"): i for i, line in enumerate(f)}
    for cased in ("false", "true"):
        theirs = BertTokenizer(vocab=vocabulary, do_lower_case=cased == "false")._tokenizer
        ids = subprocess.run([program, "ids", vocab, cased, text], check=True, capture_output=True, text=True).stdout.split("\n")[:-1]
        same = [[int(i) for i in line.split()] for line in ids] == [e.ids for e in theirs.encode_batch(lines, add_special_tokens=False)]
        calls = {"encode_batch": theirs.encode_batch, "encode_batch_fast": theirs.encode_batch_fast}
        ours_s, theirs_s = [], {name: [] for name in calls}
        for _ in range(rounds):
            out = subprocess.run([program, "time", vocab, cased, text], check=True, capture_output=True, text=True).stdout
            ours = json.loads(out)
            ours_s.append(ours["seconds"])
            for name, call in calls.items():
                started = time.perf_counter()
                batch = call(lines, add_special_tokens=False)
                theirs_s[name].append(time.perf_counter() - started)
                del batch
        mine, other, fast = statistics.median(ours_s), statistics.median(theirs_s["encode_batch"]), statistics.median(theirs_s["encode_batch_fast"])
        print(json.dumps({"bench": "tokenizer", "cased": cased == "true", "lines": len(lines), "tokens": ours["tokens"], "same_ids": same,
                          "motley_s": round(mine, 4), "tokenizers_s": round(other, 4), "tokenizers_fast_s": round(fast, 4), "motley_mtokens_per_s": round(ours["tokens"] / mine / 1e6, 2),
                          "tokenizers_mtokens_per_s": round(ours["tokens"] / other / 1e6, 2), "ratio": round(min(other, fast) / mine, 2)}))
        if not same:
            sys.exit(1)


main()
