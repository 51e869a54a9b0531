#!/usr/bin/env python3
"""Compares the ids of motley's tokenizer with those of Hugging Face's BertTokenizer on made-up strings.

    python3 tests/golden/tokenizer_fuzz.py build/release/bin/tokenizer_bench [STRINGS [SEED]]

needs transformers 5 (whose BertTokenizer is the Rust library `tokenizers`). First every code point of Unicode between
letters, then STRINGS random ones over the characters that tokenizers get wrong, cased and uncased. The vocabulary has
nearly every character as a word and as a piece, so that hardly any difference can hide behind [UNK]. Bytes that are not
UTF-8 are compared with what Python's decoder makes of them.

Prints the strings that differ and ends with 1 when there are any. KNOWN are those that may.
"""
import os
import random
import subprocess
import sys
import tempfile

from transformers import BertTokenizer

# Capital letters that Unicode has since version 16: the reference knows their lower case, ICU 72 does not.
KNOWN = {0x1C89, 0xA7CB, 0xA7CC, 0xA7CE, 0xA7D2, 0xA7D4, 0xA7DA, 0xA7DC, *range(0x10D50, 0x10D66), *range(0x16EA0, 0x16EB9)}

INTERESTING = [
    "aAzZeEiIoOuUnNsSkK019", " \t\r\u00a0\u2003\u3000\u1680\u202f\u205f\u2028\u2029\u200b\u200c\u200d\u2060\ufeff",
    "\0\x01\x0b\x0c\x1b\x1c\x1d\x1e\x1f\x7f\x80\x85\x9f\u00ad\u061c\u06dd\u070f\u08e2\u180e\u180b\u202e\u2066",
    ".,!?'\"-_()[]{}<>$+=^`|~@#%&*/\\:;", "\u2019\u201c\u2026\u2014\u00bf\u00a1\u00a7\u00b6\u037e\u0387\u1fef\u2260\u226e\u3001\u3002\uff01\u20ac\u00a3",
    "\u0130\u0131\u00df\u1e9e\u03a3\u03c3\u03c2\u0345\u0390\u03b0\ufb01\ufb03\u0149\u01f0\u1e96\u01c4\u01c5\u01c6\u212a\u212b\u2126",
    "\u0300\u0301\u0307\u0308\u0323\u0327\u0328\u0338\u0342\u034f\u0360\u093c\u094d\u0e38\u0e48\u05b0\u0651\u064b\u3099\u302e\u302f\u1d165\u1ab0\u20dd\u0488",
    "\u0344\u0340\u0958\u09dc\u0f43\u0f73\u0f75\u0f81\u1e69\u1e0b\u0323\u1ea5\u01d5\u1fa7\u2adc\ufb1d\ufb4f\U0001d15e\U0001d160\U00011938\U00011935",
    "\u4e2d\u6587\u3400\u9fff\uf900\ufa0e\ufa30\U00020000\U0002a6df\U0002a700\U0002b820\U0002b91f\U0002b920\U0002ceaf\U0002f800\U0002f868",
    "\ud55c\uae00\uac00\uac01\ud7a3\u1100\u1161\u11a8\u3042\u30ab\u30d1\uff76\uff9f", "\U0001f468\u200d\U0001f469\u200d\U0001f467\U0001f3fd\u2764\ufe0f\U0001f1e9\U0001f1ea\u20e3",
    "\ue000\uf8ff\U000f0000\U0010fffd\ufffd\ufffe\uffff\U0010ffff\U0001fffe\u0378\u0530\u2e5e\U000e0001\U000e0041\U000110bd\U000110cd\U00013430",
    "\u166d\u1734\u1885\u1886\ua9bd\U000111c9\u07fd\u0898\u08d3\u08e1\u0afa\u1df6\u1dfb\U00010d24\U00010f46\U0001e130\U0001e944\u1c90\u13a0\uab70\u13f8\U00010400\ua64a\u1c80\u2c2f\u2c5f",
]
WORDS = ["[MASK]", "[SEP]", "[CLS]", "[UNK]", "[PAD]", "[mask]", "[MASK", "MASK]", "[[MASK]]", "word", "Straße", "İstanbul", "ΟΔΟΣ", "naïve", "e\u0301",
         "A\u030a", "한국어", "中文字", "x" * 99, "x" * 100, "x" * 101, "é" * 100, "é" * 101, "가" * 34, "가" * 51, "##a", "a##b", "don't", "U.S.A."]


def random_string(rng):
    parts = []
    for _ in range(rng.randint(1, 12)):
        kind = rng.random()
        if kind < 0.12:
            parts.append(rng.choice(WORDS))
        elif kind < 0.2:
            parts.append(chr(rng.choice([c for c in (rng.randrange(0x110000), rng.randrange(0x3000)) if not 0xD800 <= c < 0xE000 and c != 10 and c not in KNOWN] or [65])))
        elif kind < 0.3:
            parts.append(" ")
        else:
            group = rng.choice(INTERESTING)
            parts.append("".join(rng.choice(group) for _ in range(rng.randint(1, 4))))
    return "".join(parts)


def spoiled(data, rng):
    """The bytes with some that are not UTF-8."""
    data = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randint(0, len(data))
        data[at:at] = rng.choice([b"\x80", b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xe4\xb8", b"\xf0\x9f\x91", b"\xf4\x90\x80\x80", b"\xc3", b"\xf5\x80", b"\xe0\x80\x80"])
    if rng.random() < 0.3 and data:
        del data[rng.randrange(len(data))]
    return bytes(data).replace(b"\n", b"")


def vocabulary():
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    known = {*range(33, 0x3400), *range(0xA000, 0xAC00), *range(0xF900, 0x12000), *range(0x16000, 0x17000), *range(0x1D000, 0x1F000)}
    for group in INTERESTING + WORDS:
        known.update(map(ord, group))
    for c in sorted(known):
        if 0xD800 <= c < 0xE000 or chr(c) in "\n\r" or chr(c).isspace():
            continue
        tokens += [chr(c), "##" + chr(c)]
    return tokens + ["ab", "##ab", "wor", "##ord", "str", "##asse", "nai", "##ve"]


def compare(program, lines, tokens, cased, folder):
    vocab, text = os.path.join(folder, "vocab.txt"), os.path.join(folder, "text")
    with open(vocab, "w", encoding="utf-8", newline="\n") as f:
        f.write("".join(t + "\n" for t in tokens))
    with open(text, "wb") as f:
        f.write(b"".join(line + b"\n" for line in lines))
    out = subprocess.run([program, "ids", vocab, "true" if cased else "false", text], check=True, capture_output=True, text=True).stdout
    ours = [[int(i) for i in line.split()] for line in out.split("\n")[:-1]]
    tokenizer = BertTokenizer(vocab={t: i for i, t in enumerate(tokens)}, do_lower_case=not cased)
    theirs = tokenizer([line.decode("utf-8", errors="replace") for line in lines], add_special_tokens=False)["input_ids"]
    assert len(ours) == len(theirs) == len(lines), (len(ours), len(lines))
    wrong = 0
    for line, a, b in zip(lines, ours, theirs):
        if a != b:
            wrong += 1
            if wrong <= 10:
                print("differs", "cased" if cased else "uncased", ascii(line.decode("utf-8", errors="replace")), "\n  motley", [ascii(tokens[i]) for i in a], "\n  theirs", [ascii(tokens[i]) for i in b])
    return wrong


def main():
    program = sys.argv[1]
    strings = int(sys.argv[2]) if len(sys.argv) > 2 else 100000
    rng = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 1)
    every = [f"a{chr(c)}b {chr(c)}".encode() for c in range(0x110000) if not 0xD800 <= c < 0xE000 and c != 10 and c not in KNOWN]
    fuzz = [random_string(rng).replace("\n", "").encode() for _ in range(strings)]
    fuzz = [spoiled(s, rng) if i % 5 == 0 else s for i, s in enumerate(fuzz)]
    tokens, wrong = vocabulary(), 0
    with tempfile.TemporaryDirectory() as folder:
        for cased in (False, True):
            for name, lines in (("every code point", every), ("random", fuzz)):
                differ = compare(program, lines, tokens, cased, folder)
                print(f"{name}, {'cased' if cased else 'uncased'}: {len(lines)} strings, {differ} differ")
                wrong += differ
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
