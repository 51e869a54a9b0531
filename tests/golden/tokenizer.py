#!/usr/bin/env python3
"""Makes tokenizer.json: a small vocabulary, hard lines, and their ids by Hugging Face's BertTokenizer.

    python3 tests/golden/tokenizer.py        needs transformers 5 and tokenizers

tokenizer_fuzz.py compares many more than fit into a golden file.
"""
import json
import os

from transformers import BertTokenizer

here = os.path.dirname(os.path.abspath(__file__))

LINES = [
    "", " ", "The quick brown fox jumped over the lazy dogs.", "Don't stop, \"really\"; (e.g. U.S.A.) -- 3.14% of $5 + 7 = x^2 `y` ~ a|b <c>",
    "tabs\tand\r\nlines\u2028of\u2029kinds", "unaffable unaffably UNAFFABLE", "[CLS] a [MASK] b[SEP][MASK]c [mask] [MASK [[UNK]] [PAD]!",
    # accents: composed, decomposed, in the other order, several, alone, beyond Latin
    "naïve café NAÏVE CAFÉ", "nai\u0308ve cafe\u0301", "a\u0323\u0301 a\u0301\u0323 \u1ea1\u0301", "\u0301x \u0344 x\u0301\u0302\u0303\u0304", "e\u034f\u0301 \u0f73 \u0f81",
    "ΟΔΥΣΣΕΥΣ Οδυσσεύς ὈΔΥΣΣΕΎΣ", "İstanbul ISPARTA ışık i\u0307", "Straße STRASSE ẞ", "ﬁnal oﬃce ŉ ǰ ǅ Ǆ Å K Ω", "ёлка Йод йод", "हिन्दी में", "ไทยที่", "שָׁלוֹם", "مُحَمَّد",
    # symbols that are and are not punctuation
    "a≠b x<\u0338y ≮ Ἀ` \u1fef \u037e \u0387", "€5 £6 ©2020 §7 ¶ ¿que? ¡no! «oui» “q” ‘r’ — … ・ 、。", "a\u166db a\u2e5db a\u061db a\U000111c9b",
    # Chinese, Japanese, Korean
    "中文字符 mixed中with英文", "漢字とカナ", "\uf900\ufa0e\ufa30 \U0002f800x", "\U00020000\U0002b820\U0002b91f\U0002b920a\u3400", "한국어 가각 \u1112\u1161\u11ab", "ｶﾞ ガ カ\u3099 Ｆｕｌｌ ｗｉｄｔｈ",
    # emoji, joined and coloured
    "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd \u2764\ufe0f 1\ufe0f\u20e3 \U0001f1e9\U0001f1ea", "smile\U0001f600smile",
    # what cannot be seen
    "zero\u200bwidth non\u200cjoiner \ufeffbom soft\u00adhyphen \u202eright\u202c word\u2060joiner", "nul\0bell\x07vt\x0bff\x0cesc\x1bfs\x1cus\x1fdel\x7fnel\u0085c1\x9f",
    "nbsp\u00a0em\u2003thin\u2009hair\u200aideographic\u3000ogham\u1680narrow\u202fmath\u205f.", "mongolian\u180evowel",
    "private\ue000use \U000f0000\U0010fffd noncharacter\ufffe\U0010ffffx unassigned\u0378\u0530x replacement\ufffdx", "new\U0001fae8 \U00010d24 \U0001e944 \u08d3\u1df6x \U00011938",
    "\U0001d400\U0001d4d0 \u2160\u2170 \u24b6 \U00010400",
    # lengths
    "x" * 99, "x" * 100, "x" * 101, "é" * 100, "é" * 101, "가" * 50 + " " + "가" * 51, "a" * 60 + "\u0301" * 60, "a," * 120, "##a a##b # ##",
    "antidisestablishmentarianism pseudopseudohypoparathyroidism", "http://example.org/~a_b?c=d&e=%20#f user@host.tld",
]

PIECES = "the quick brown fox jump ##ed over lazy dog ##s don stop really un ##aff ##able ##ably na ##ive naive cafe xx ##xx ##xxx str ##asse final off ##ice" \
         " istanbul smile tab lines of kinds anti ##dis ##establish ##ment ##arian ##ism pseudo ##hypo ##para ##thyroid http example org user host new nul"


def main():
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + PIECES.split()
    known = set(map(chr, range(33, 127)))
    for do_lower in (False, True):
        normalizer = BertTokenizer(do_lower_case=do_lower)._tokenizer.normalizer
        for line in LINES:
            known.update(c for c in normalizer.normalize_str(line) if not c.isspace())
    # Every seventh of the further characters is left out: [UNK] is to be met too.
    characters = [c for i, c in enumerate(sorted(known)) if ord(c) < 127 or i % 7]
    tokens += [p + c for c in characters for p in ("", "##")]
    tokens = list(dict.fromkeys(tokens))
    vocabulary = {t: i for i, t in enumerate(tokens)}
    golden = {"vocabulary": tokens, "lines": LINES}
    for name, lower in (("uncased", True), ("cased", False)):
        tokenizer = BertTokenizer(vocab=vocabulary, do_lower_case=lower)
        golden[name] = tokenizer(LINES, add_special_tokens=False)["input_ids"]
    with open(os.path.join(here, "tokenizer.json"), "w") as f:
        f.write("{\n" + ",\n".join(f'"{k}": [\n' + ",\n".join(json.dumps(x) for x in v) + "\n]" if k != "vocabulary" else f'"{k}": {json.dumps(v)}' for k, v in golden.items()) + "\n}\n")


main()
