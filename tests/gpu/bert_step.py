#!/usr/bin/env python3
"""Times training steps of BERT on one GPU, and the same steps in PyTorch, in turn.

    python3 tests/gpu/bert_step.py PROGRAM [--size full|quick|tiny] [--device cuda|cpu] [--budget SECONDS]
                                   [--compile layers|whole|none] [--batch N] [--no-peer]

PROGRAM is gpu_bert_step_bench. A step is forward, backward, clipping of the gradient norm and AdamW, dropout 0.1, 15 % of the
positions masked; its heads see the masked positions only, as in Motley. The peer is Hugging Face's BertForPreTraining with
SDPA attention and no attention mask (full sequences), or, where transformers is not installed, the same network in plain
torch.nn; autocast in bf16 and fp16, GradScaler in fp16, fused AdamW, torch.compile. "layers" compiles the encoder's layers,
which PyTorch compiles once for all of them; "whole" compiles everything in one piece, which takes minutes. In float32 neither
side uses TF32. The case listed first is also run with the plain network and compiled whole if time is left.

Prints a line of JSON per case: Motley's (see gpu_bert_step_bench), and in "peer" the milliseconds of PyTorch's step; "ratio"
is PyTorch's time over Motley's: above 1, Motley is faster. Where PyTorch is not installed, or time has run out, Motley's alone.
--budget is the time in which all cases are done.
"""
import sys

import steps

SIZES = {  # hidden, layers, heads, words
    "large": (1024, 24, 16, 30522),
    "base": (768, 12, 12, 30522),
    "tiny": (16, 2, 2, 101),
}


def hugging_face(torch, model):
    """(network, its parts to compile one by one, function of inputs that gives [tokens, hidden] and the pooled output, heads)"""
    from transformers import BertConfig, BertForPreTraining

    hidden, layers, heads, words = SIZES[model]
    config = BertConfig(vocab_size=words, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
                        intermediate_size=4 * hidden, attn_implementation="sdpa")
    network = BertForPreTraining(config)

    def encode(ids, types):
        out = network.bert(ids, token_type_ids=types)
        return out.last_hidden_state, out.pooler_output

    return network, list(network.bert.encoder.layer), encode, network.cls.predictions, network.cls.seq_relationship


def plain(torch, model):
    """The same network in torch.nn: post-norm encoder, query, key and value in one product, tied decoder."""
    nn, functional = torch.nn, torch.nn.functional
    hidden, layers, heads, words = SIZES[model]

    def linear(inputs, outputs):
        layer = nn.Linear(inputs, outputs)
        nn.init.normal_(layer.weight, std=0.02)
        nn.init.zeros_(layer.bias)
        return layer

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = linear(hidden, 3 * hidden), linear(hidden, hidden)
            self.up, self.down = linear(hidden, 4 * hidden), linear(4 * hidden, hidden)
            self.norm1, self.norm2 = nn.LayerNorm(hidden, 1e-12), nn.LayerNorm(hidden, 1e-12)
            self.dropout = nn.Dropout(0.1)

        def forward(self, x):
            n, seq, _ = x.shape
            q, k, v = self.qkv(x).view(n, seq, 3, heads, hidden // heads).permute(2, 0, 3, 1, 4).unbind(0)
            context = functional.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if self.training else 0.0)
            context = context.transpose(1, 2).reshape(n, seq, hidden)
            x = self.norm1(x + self.dropout(self.out(context)))
            return self.norm2(x + self.dropout(self.down(functional.gelu(self.up(x)))))

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.word, self.position, self.kind = nn.Embedding(words, hidden), nn.Embedding(512, hidden), nn.Embedding(2, hidden)
            for table in (self.word, self.position, self.kind):
                nn.init.normal_(table.weight, std=0.02)
            self.norm, self.dropout = nn.LayerNorm(hidden, 1e-12), nn.Dropout(0.1)
            self.layers = nn.ModuleList(Layer() for _ in range(layers))
            self.pooler, self.next_sentence = linear(hidden, hidden), linear(hidden, 2)
            self.transform, self.transform_norm = linear(hidden, hidden), nn.LayerNorm(hidden, 1e-12)
            self.bias = nn.Parameter(torch.zeros(words))

        def encode(self, ids, types):
            places = torch.arange(ids.shape[1], device=ids.device)
            x = self.dropout(self.norm(self.word(ids) + self.position(places) + self.kind(types)))
            for layer in self.layers:
                x = layer(x)
            return x, torch.tanh(self.pooler(x[:, 0]))

        def predict(self, x):
            x = self.transform_norm(functional.gelu(self.transform(x)))
            return functional.linear(x, self.word.weight, self.bias)

    network = Network()
    return network, list(network.layers), network.encode, network.predict, network.next_sentence


def make_step(torch, network_kind, compiled, device, model, batch, seq, precision):
    network, parts, encode, predict, next_sentence = (hugging_face if network_kind == "hf" else plain)(torch, model)
    network.to(device).train()
    words = SIZES[model][3]
    ids = torch.randint(0, words, (batch, seq), device=device)
    types = (torch.arange(seq, device=device) >= seq // 2).long().expand(batch, seq)
    masked = batch * (seq * 5 // 32)
    places = torch.arange(masked, device=device) * (batch * seq) // masked
    labels = torch.randint(0, words, (masked,), device=device)
    follows = torch.arange(batch, device=device) % 2
    cross_entropy = torch.nn.functional.cross_entropy

    def forward():
        with steps.autocast(torch, device, precision):
            tokens, pooled = encode(ids, types)
            scores = predict(tokens.reshape(batch * seq, -1)[places])
            return cross_entropy(scores.float(), labels) + cross_entropy(next_sentence(pooled).float(), follows)

    if compiled == "layers":
        for part in parts:
            part.compile(dynamic=False)
    elif compiled == "whole":
        forward = torch.compile(forward, dynamic=False)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-5, weight_decay=0.01, fused=device == "cuda")
    scaler = torch.amp.GradScaler(device, enabled=precision == "fp16")

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = forward()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss

    return step, None


SUITE = steps.suite(
    bench="bert_step",
    size="seq",
    cases={
        "full": [("large", 128, "bf16"), ("large", 512, "bf16"), ("large", 128, "fp32"), ("large", 512, "fp32"),
                 ("large", 128, "fp16"), ("large", 512, "fp16"), ("base", 128, "bf16"), ("base", 512, "bf16"),
                 ("base", 128, "fp32"), ("base", 512, "fp32")],
        "quick": [("base", 128, "bf16"), ("base", 128, "fp32")],
        "tiny": [("tiny", 16, "fp32"), ("tiny", 16, "bf16"), ("tiny", 16, "fp16")],
    },
    checks={"full": [("base", 128)], "quick": [("base", 128)], "tiny": [("tiny", 16)]},
    batch={"full": "fit", "quick": "8", "tiny": "2"},
    networks={"hf": lambda: steps.installed("transformers"), "plain": lambda: True},
    compile=["layers", "whole", "none"],
    extra=[("plain", "layers"), ("plain", "whole")],
    make_step=make_step,
)

if __name__ == "__main__":
    sys.exit(steps.main(SUITE, __doc__))
