"""Small vocabularies as GGUF metadata, and the ids that other implementations give for them.

    pip install sentencepiece transformers==4.57.6 gguf protobuf
    python generate.py            # writes *.gguf and *.json beside itself

llama-style, gemma-style and unigram are trained by sentencepiece on the text below and converted by transformers
(convert_slow_tokenizer.py), which gives the expected ids; sentencepiece's own ids are recorded too. byte-level is a
byte-level BPE of the tokenizers library, with one list of ids for each way of cutting text that GGUF files name.
Every sentence here was written for this file.
"""
import io
import json
import types
from pathlib import Path

import gguf
import sentencepiece as spm
from sentencepiece import sentencepiece_model_pb2 as proto
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers.convert_slow_tokenizer import GemmaConverter, LlamaConverter, T5Converter

HERE = Path(__file__).parent

CORPUS = """
The printer folded each sheet three times, and the eighth leaf came out of the press with the others.
She counted the pages again: sixteen, thirty-two, forty-eight, and then the thread ran out.
An octavo is a small book; a folio is a large one; a quarto lies somewhere in between.
The reader who opens the first leaf does not know yet what the last leaf will say to her.
When the ink was dry they stacked the sheets, pressed them, and sewed them in the order of their letters.
In 1623 the price was 20 shillings, in 1709 it was 35, and by 1850 nobody paid more than 12.
They were reading there, and the others were reading here, and the weather was neither warm nor cold.
Die Bogen wurden gefaltet, geheftet und gebunden; später schnitt man die Kanten mit einem Messer auf.
Le relieur plie la feuille, coud le cahier, colle le dos, et le livre est prêt pour être lu.
El papel viene del molino, la tinta de la fábrica, y las letras de una caja llena de plomo.
def fold(sheet, times): return [part for part in sheet for _ in range(times)]
for (let page = 0; page < pages.length; page++) { pages[page].number = page + 1; }
if (leaf == null) { throw new Error("there is no leaf " + number); }
aaaa bbbb aaa bbb aa bb ---- -------- ==== ======== .... ........ the the the and and and
""".strip().split("\n")

STRINGS = [
    "", " ", "  ", "   ", "\n", "\n\n", "\n\n\n\n", "\t", "\t\t", " \n ", "a", " a", "a ", "  a", "   a  b   c    ", "The",
    " The", "the leaf", " the leaf", "the  leaf", "the   leaf ", "The printer folded each sheet.", "Printing",
    "line one\nline two\r\nline three\r", "\nfirst\n\nsecond\n\n\nthird", "tab\tand\ttab", "trailing tab\t",
    "1623", "In 1623, 20 shillings; 3.14159 and 1,000,000", "٣٤٥", "½ ² Ⅷ", "don't they're WE'LL it'S I'd",
    "camelCaseWord HTTPServer snake_case_word XMLHttpRequest", "-------- ==== ....", "-----", "aaaaa", "baaab aaaaaaa",
    "é", "café prêt fábrica später", "e\u0301 cafe\u0301", "ﬁne ﬂow Ⅷ ｆｕｌｌ", "straße ÅNGSTRÖM", "ひらがな カタカナ 漢字",
    "第八葉を読む。", "पुस्तक का पन्ना", "книга и лист", "ספר קטן", "📖", "📖📖 🇳🇱 👩‍🔬 👍🏽", "a\u200bb\u200cc\u200dd", "\ufeffmark",
    "nul\u0000 bell\u0007 esc\u001b", "non\u00a0breaking em\u2003space ideographic\u3000space", "▁", "▁a", "a▁b", "▁▁ ▁",
    "<0x0A>", "<0x41> is not A", "<s>", "</s> and <s>", "text<tool>more <tool> text", "<|user|>\nhello<|user|> there",
    "<b>bold</b> <i>not</i>", "<start_of_turn>user\nhi<end_of_turn>\n", "<unk>", "<pad>x",
    "def fold(sheet, times):\n    return [part for part in sheet]\n\n\nprint(fold('a', 8))",
    "    indented\n\tby tab\n      six", "https://example.org/a?b=c&d=%20#e", "{\"key\": [1, 2.5, null], \"ключ\": \"значение\"}",
    "an unmerged word, unmergedly", "x" * 40, "the" * 12, "The quick leaf turns over; the slow reader does not. " * 3,
]


def train(kind, size, **options):
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=model, model_type=kind, vocab_size=size, character_coverage=1.0,
        num_threads=1, minloglevel=2, **options)
    return model.getvalue()


def write_gguf(name, model, pieces, extra):
    writer = gguf.GGUFWriter(None, "llama")
    writer.add_tokenizer_model(model)
    texts, scores, types_ = zip(*pieces)
    writer.add_token_list(list(texts))
    writer.add_token_scores(list(scores))
    writer.add_token_types(list(types_))
    extra(writer)
    writer.open_output_file(HERE / f"{name}.gguf")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def gguf_pieces(model):
    """As llama.cpp's converter writes them: user-defined pieces with plain spaces."""
    for piece in model.pieces:
        text = piece.piece.replace("▁", " ") if piece.type == 4 else piece.piece
        yield text.encode(), piece.score if piece.type == 1 else -1000.0, piece.type


def convert(converter, data, path, **attributes):
    path.write_bytes(data)
    names = {"vocab_file": str(path), "convert_ids_to_tokens": lambda i: reader.id_to_piece(i),
             "convert_tokens_to_ids": lambda token: reader.piece_to_id(token)} | attributes
    reader = spm.SentencePieceProcessor(model_proto=data)
    original = types.SimpleNamespace(**names)
    tokenizer = converter(original).converted()
    path.unlink()
    return tokenizer, reader


def cases(tokenizer, reader):
    specials = [piece.piece for piece in reader_proto(reader).pieces if piece.type == 3] + ["<unk>"]
    for text in STRINGS:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        case = {"text": text, "ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False),
                "decoded_skip_special": tokenizer.decode(ids, skip_special_tokens=True)}
        # sentencepiece never parses control tokens, which is on purpose; everything else should agree.
        if not any(special in text for special in specials):
            theirs = reader.encode(text)
            if theirs != ids:
                case["sentencepiece_ids"] = theirs
                print("differs", repr(text), [reader.id_to_piece(i) for i in theirs], [tokenizer.id_to_token(i) for i in ids])
        yield case


def reader_proto(reader):
    model = proto.ModelProto()
    model.ParseFromString(reader.serialized_model_proto())
    return model


def main():
    out = {}
    # Llama 2: a space before every text, all spaces kept, bytes for what is missing.
    data = train("bpe", 640, byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
                 split_digits=True, allow_whitespace_only_pieces=True, control_symbols=["<|user|>"],
                 user_defined_symbols=["<tool>"])
    tokenizer, reader = convert(LlamaConverter, data, HERE / "x.model", legacy=True, add_prefix_space=True)
    tokenizer.add_tokens([AddedToken("<unk>", normalized=False, special=True)])
    out["llama-style"] = list(cases(tokenizer, reader))

    def llama(writer):
        writer.add_bos_token_id(1), writer.add_eos_token_id(2), writer.add_unk_token_id(0)
    write_gguf("llama-style", "llama", gguf_pieces(reader_proto(reader)), llama)

    # Gemma: no space before a text, runs of spaces and newlines are tokens that match before merging.
    data = train("bpe", 640, byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
                 split_digits=True, allow_whitespace_only_pieces=True, add_dummy_prefix=False,
                 pad_id=0, eos_id=1, bos_id=2, unk_id=3, control_symbols=["<start_of_turn>", "<end_of_turn>"],
                 user_defined_symbols=["\n", "\n\n", "\n\n\n", "▁▁", "▁▁▁", "▁▁▁▁", "\t", "<b>", "</b>"])
    tokenizer, reader = convert(GemmaConverter, data, HERE / "x.model", pad_token="<pad>", eos_token="</s>",
                                bos_token="<s>")
    tokenizer.add_tokens([AddedToken("<unk>", normalized=False, special=True)])
    out["gemma-style"] = list(cases(tokenizer, reader))

    def gemma(writer):
        writer.add_bos_token_id(2), writer.add_eos_token_id(1), writer.add_unk_token_id(3), writer.add_pad_token_id(0)
        writer.add_add_bos_token(True), writer.add_add_space_prefix(False)
    write_gguf("gemma-style", "llama", gguf_pieces(reader_proto(reader)), gemma)

    # T5: the likeliest pieces, characters rewritten (NFKC), spaces trimmed.
    data = train("unigram", 200, normalization_rule_name="nmt_nfkc", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    tokenizer, reader = convert(T5Converter, data, HERE / "x.model", _extra_ids=0)
    tokenizer.add_tokens([AddedToken("<unk>", normalized=False, special=True)])
    out["unigram"] = list(cases(tokenizer, reader))
    spec = reader_proto(reader)

    def unigram(writer):
        writer.add_eos_token_id(1), writer.add_unk_token_id(2), writer.add_pad_token_id(0)
        writer.add_add_space_prefix(True), writer.add_remove_extra_whitespaces(True)
        writer.add_precompiled_charsmap(spec.normalizer_spec.precompiled_charsmap)
    write_gguf("unigram", "t5", gguf_pieces(spec), unigram)

    for name, found in out.items():
        (HERE / f"{name}.json").write_text(json.dumps(found, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
    byte_level()


WORD_ENDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
# The patterns of the tokenizer.json files of the models whose name a GGUF file gives, and whether words that are tokens
# are taken whole, and whether text is composed first.
CUTS = {
    "gpt-2": (None, False, False),
    "olmo": (None, False, True),
    "smollm": ("digits", False, False),
    "llama-bpe": (WORD_ENDS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
                  True, False),
    "dbrx": (WORD_ENDS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
             False, False),
    "qwen2": (WORD_ENDS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
              False, True),
    "tekken": (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*"
               r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+", True, False),
    "gpt-4o": (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{WORD_ENDS}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{WORD_ENDS}?"
               r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+", False, False),
}


def byte_level():
    """One vocabulary, trained without cuts so that it has pieces across every border, and ids for each way of cutting."""
    base = Tokenizer(models.BPE())
    base.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    base.train_from_iterator(CORPUS + [text for text in STRINGS if len(text) < 80], trainer)
    model = json.loads(base.to_str())["model"]
    vocab, merges = model["vocab"], [tuple(merge) for merge in model["merges"]]
    # A word that no merges make: only some models take it whole.
    vocab |= {"<|end|>": len(vocab), "<tool>": len(vocab) + 1, "Ġunmerged": len(vocab) + 2}
    found = {}
    for pre, (cut, whole, composed) in CUTS.items():
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=whole))
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=cut in (None, "digits"))
        if cut == "digits":
            level = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), level])
        elif cut:
            level = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(cut), "isolated"), level])
        tokenizer.pre_tokenizer = level
        if composed:
            tokenizer.normalizer = normalizers.NFC()
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens([AddedToken("<|end|>", normalized=False, special=True)])
        tokenizer.add_tokens([AddedToken("<tool>", normalized=False, special=False)])
        found[pre] = [tokenizer.encode(text).ids for text in STRINGS]
    texts = [text for text, _ in sorted(vocab.items(), key=lambda item: item[1])]
    kinds = {"<|end|>": 3, "<tool>": 4}

    def extra(writer):
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_merges([f"{left} {right}" for left, right in merges])
        writer.add_eos_token_id(vocab["<|end|>"])
        writer.add_chat_template([
            {"name": "default", "template": "{% for m in messages %}{{ m.role }}: {{ m.content }}<|end|>{% endfor %}"},
            {"name": "tool_use", "template": "{{ tools | tojson }}<|end|>"}])
    write_gguf("byte-level", "gpt2", [(text.encode(), 0.0, kinds.get(text, 1)) for text in texts], extra)
    lines = {"strings": STRINGS, "ids": found}
    (HERE / "byte-level.json").write_text(json.dumps(lines, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
