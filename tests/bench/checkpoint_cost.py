"""What a checkpoint every 50 steps adds to the time of training: the same run of a small BERT with and without, in turn.

    python3 tests/bench/checkpoint_cost.py build/release/bin/motley [DIRECTORY [ROUNDS [RANKS]]]

Prints one line of JSON: seconds for 100 steps, two checkpoints among them, medians over the rounds, and by what part the ones
with checkpoints take longer. Time is taken at the lines of two steps, so that start and end do not count.
"""
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

motley = os.path.abspath(sys.argv[1])
directory = tempfile.mkdtemp(prefix="checkpoint_cost-", dir=sys.argv[2] if len(sys.argv) > 2 else ".")
rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 3
ranks = int(sys.argv[4]) if len(sys.argv) > 4 else 2
first, last = 10, 110  # after the checkpoints of steps 50 and 100

# BERT-small: 28.8 million parameters, 345 MB with Adam's state.
config = {"vocab_size": 30522, "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 2048,
          "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "max_position_embeddings": 512,
          "type_vocab_size": 2, "initializer_range": 0.02}
environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMP_NUM_THREADS="1",
                   OMPI_MCA_btl_vader_single_copy_mechanism="none")


def at(name):
    return os.path.join(directory, name)


def prepare():
    generator = random.Random(1)
    words = [f"w{i}" for i in range(30517)]
    with open(at("vocab.txt"), "w") as file:
        file.write("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + words) + "\n")
    with open(at("text.txt"), "w") as file:
        for _ in range(400):
            for _ in range(10):
                file.write(" ".join(generator.choices(words, k=20)) + " .\n")
            file.write("\n")
    with open(at("config.json"), "w") as file:
        json.dump(config, file)
    subprocess.run([motley, "data", "bert", "--input", at("text.txt"), "--dict", at("vocab.txt"), "--max-seq-length", "128",
                    "--out", at("data/train")], check=True, env=environment, stderr=subprocess.DEVNULL)


def seconds(checkpoints):
    shutil.rmtree(at("run"), ignore_errors=True)
    command = ["mpirun", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1", "-n", str(ranks), motley,
               "train", "--task", "bert", "--data", at("data"), "--config-file", at("config.json"), "--dict", at("vocab.txt"),
               "--optimizer", "adamw", "--lr", "1e-4", "--global-batch", "16", "--policy", "sync", "--max-update",
               str(last + 1), "--log-format", "json", "--log-interval", "1", "--save-dir", at("run")]
    command += ["--save-interval-updates", "50", "--validate-interval", "0"] if checkpoints else ["--no-save"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    seen = {}
    for line in process.stdout:
        seen[json.loads(line)["step"]] = time.monotonic()
    if process.wait() != 0:
        raise SystemExit("the run failed")
    return seen[last] - seen[first]


prepare()
times = {True: [], False: []}
for number in range(rounds):
    for checkpoints in ((True, False) if number % 2 else (False, True)):
        times[checkpoints].append(seconds(checkpoints))
shutil.rmtree(directory)
having, without = statistics.median(times[True]), statistics.median(times[False])
print(json.dumps({"bench": "checkpoint_cost", "ranks": ranks, "steps": last - first, "s": round(having, 2),
                  "without_s": round(without, 2), "longer": round(having / without - 1, 4),
                  "all_s": [round(s, 2) for s in times[True]], "all_without_s": [round(s, 2) for s in times[False]]}))
