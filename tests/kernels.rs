//! Every kernel on every adapter that is there, against its f64 twin: tile edges, hostile numbers, trusted and checked
//! shaders. Cases stand in `kernels::self_test`; each already demands equal bits of two runs and untouched memory around
//! its outputs. Here they meet more shapes, and each other: what must not depend on something is compared bit for bit.
//!
//! To try a second driver, name its manifest: `VK_DRIVER_FILES=.../vk_swiftshader_icd.json`.

use octavo::base::{DType, rng};
use octavo::gpu::device::ShaderMode;
use octavo::gpu::{DeviceKind, Gpu, list_adapters};
use octavo::kernels::choice::product_candidates;
use octavo::kernels::embed::Table;
use octavo::kernels::experts::{self, Sum};
use octavo::kernels::heads::Heads;
use octavo::kernels::matmul::{Batch, Epilogue};
use octavo::kernels::norm::Rows;
use octavo::kernels::norm_add::Next;
use octavo::kernels::self_test::attention::{Path, attend};
use octavo::kernels::self_test::data::Spread;
use octavo::kernels::self_test::matrix::{self, Shape};
use octavo::kernels::self_test::rig::Rig;
use octavo::kernels::self_test::sampler::cases::{self, plain_row};
use octavo::kernels::self_test::sampler::{self, Case, Row};
use octavo::kernels::self_test::{self, Outcome, heads, norms, rows, tables};
use octavo::kernels::{Form, KvDtype, attention, matmul, rope_kv};
use octavo::model::spec::{Activation, AttnSpec, NormKind};
use octavo::sampling::SamplingParams;

/// A device and what to call it.
struct Device {
    name: String,
    mode: ShaderMode,
    gpu: Gpu,
}

/// Each adapter, with trusted and then with checked shaders.
fn devices() -> Vec<Device> {
    let mut devices = Vec::new();
    for mode in [ShaderMode::Trusted, ShaderMode::Checked] {
        for found in list_adapters().unwrap() {
            let name = format!("{} ({mode:?})", found.profile.name);
            devices.push(Device { name, mode, gpu: Gpu::open_adapter(found, mode).unwrap() });
        }
    }
    assert!(!devices.is_empty(), "no adapter; see `octavo doctor`");
    devices
}

/// Software adapters that interpret more than they compile get fewer repetitions of the same thing.
fn slow(gpu: &Gpu) -> bool {
    gpu.profile.name.contains("SwiftShader")
}

/// The bits of a case that must succeed.
#[track_caller]
fn bits(device: &Device, what: &dyn std::fmt::Debug, outcome: Outcome) -> Vec<u32> {
    match outcome {
        Ok(found) => found.bits,
        Err(error) => panic!("{}, {what:?}: {error}", device.name),
    }
}

/// Runs `cases` on every device and demands the same bits of trusted and checked shaders.
fn on_every_device(cases: impl Fn(&Device, &Rig<'_>) -> Vec<Vec<u32>>) {
    let found: Vec<(Device, Vec<Vec<u32>>)> = devices()
        .into_iter()
        .map(|device| {
            let bits = cases(&device, &Rig::new(&device.gpu));
            println!("{}: {} cases", device.name, bits.len());
            (device, bits)
        })
        .collect();
    let (trusted, checked) = found.split_at(found.len() / 2);
    for ((trusted, a), (checked, b)) in trusted.iter().zip(checked) {
        assert_eq!(a.len(), b.len());
        for (case, (a, b)) in a.iter().zip(b).enumerate() {
            assert!(a == b, "case {case} differs between {} and {}", trusted.name, checked.name);
        }
    }
}

const ROWS: usize = 45;

/// Formats and tiles that a device tries; checked shaders are the same text, so a few of each suffice.
fn matmul_specs(device: &Device) -> Vec<(matmul::Spec, u32)> {
    let spec = |dtype, form, epilogue| matmul::Spec { dtype, form, normed: false, epilogue, batch: Batch::Rows };
    let gated = Epilogue::ActMul(Activation::Silu);
    let forms =
        || DType::ALL.into_iter().flat_map(|dtype| self_test::forms(dtype).into_iter().map(move |form| (dtype, form)));
    let mut specs: Vec<_> = forms().map(|(dtype, form)| (spec(dtype, form, Epilogue::Store), 4)).collect();
    if device.mode == ShaderMode::Trusted {
        for epilogue in [Epilogue::Store, Epilogue::SoftCap] {
            let wanted = matmul::Spec { batch: Batch::Samples, ..spec(DType::BF16, Form::F32, epilogue) };
            specs.extend([(wanted, 1), (wanted, 8)]);
            let wanted = matmul::Spec { batch: Batch::Samples, ..spec(DType::Q8_0, Form::Int12, epilogue) };
            specs.extend([(wanted, 1), (wanted, 8)]);
        }
        for (dtype, form) in forms() {
            let tiles: &[u32] = if form == Form::F32 { &[1, 2, 8] } else { &[1, 8] };
            specs.extend(tiles.iter().map(|&tile| (spec(dtype, form, Epilogue::Store), tile)));
        }
        specs.extend(DType::ALL.map(|dtype| (spec(dtype, Form::F32, gated), 2)));
        let normed = matmul::Spec { normed: true, ..spec(DType::Q4_1, Form::Int12, Epilogue::Bias) };
        specs.extend([1, 4, 8].map(|tile| (normed, tile)));
        for (form, tile) in [(Form::F32, 1), (Form::F32, 4), (Form::F32, 8), (Form::Int12, 2)] {
            specs.extend(Epilogue::ALL.map(|epilogue| (spec(DType::Q5_1, form, epilogue), tile)));
        }
    }
    specs
}

/// One product at the edges of its tile: every result is the beginning of the largest one.
fn matmul_edges(device: &Device, rig: &Rig<'_>, spec: &matmul::Spec, tile: u32, blocks: usize) -> Vec<u32> {
    let run = |tokens: usize, shards: usize, spread| {
        let shape = Shape { tokens, rows: ROWS, blocks, shards };
        bits(device, &(spec, tile, shape, spread), matrix::matmul(rig, spec, tile, &shape, spread))
    };
    let whole = run(25, 1, Spread::Heavy);
    let t = tile as usize;
    for tokens in [1, t - 1, t, t + 1, 3 * t + 1].into_iter().filter(|&tokens| tokens > 0) {
        let some = run(tokens, 1, Spread::Heavy);
        assert!(some == whole[..some.len()], "{}: {spec:?}, tile {tile}, {tokens} tokens", device.name);
    }
    assert!(run(25, 2, Spread::Heavy) == whole, "{}: {spec:?} in two shards", device.name);
    run(t + 1, 1, Spread::Extreme);
    whole
}

/// Bits of every format and epilogue, after checking that no tile changes them.
fn matmul_family(device: &Device, rig: &Rig<'_>, blocks: usize, specs: &[(matmul::Spec, u32)]) -> Vec<Vec<u32>> {
    let mut seen: Vec<(matmul::Spec, Vec<u32>)> = Vec::new();
    for (spec, tile) in specs {
        let found = matmul_edges(device, rig, spec, *tile, blocks);
        match seen.iter().find(|(other, _)| other == spec) {
            Some((_, before)) => assert!(*before == found, "{}: {spec:?} changes with tile {tile}", device.name),
            None => seen.push((*spec, found)),
        }
    }
    seen.into_iter().take(26).map(|(_, bits)| bits).collect()
}

#[test]
fn products_have_the_same_bits_for_every_tile_and_number_of_tokens() {
    on_every_device(|device, rig| matmul_family(device, rig, 5, &matmul_specs(device)));
}

/// Whole numbers may be multiplied by any instruction.
#[test]
fn products_of_whole_numbers_have_the_same_bits_in_either_arithmetic() {
    for mut device in devices().into_iter().filter(|device| device.mode == ShaderMode::Trusted) {
        let shape = Shape { tokens: 9, rows: ROWS, blocks: 5, shards: 1 };
        let mut run = |subgroups: bool| {
            let sizes = device.gpu.profile.subgroups.clone();
            device.gpu.profile.subgroups = sizes.clone().filter(|_| subgroups);
            let rig = &Rig::new(&device.gpu);
            let one = |(dtype, tile)| {
                let spec = matmul::Spec {
                    dtype,
                    form: Form::Int12,
                    normed: true,
                    epilogue: Epilogue::Store,
                    batch: Batch::Rows,
                };
                let outcome = matrix::matmul(rig, &spec, tile, &shape, Spread::Heavy);
                (matmul::variant(&spec, tile, &rig.gpu.profile), bits(&device, &(dtype, tile), outcome))
            };
            let found: Vec<_> =
                [(DType::Q4_1, 1), (DType::Q8_0, 8), (DType::Q4_0, 4), (DType::Q6_K, 2)].into_iter().map(one).collect();
            device.gpu.profile.subgroups = sizes;
            found
        };
        let (together, apart) = (run(true), run(false));
        for ((variant, together), (other, apart)) in together.iter().zip(&apart) {
            println!("{}: {variant} and {other}", device.name);
            assert!(together == apart, "{}: {variant} differs from {other}", device.name);
        }
    }
}

#[test]
fn products_in_segments_have_the_same_bits_for_every_tile() {
    for mut device in devices() {
        // The wide workgroup of a card, with segments of a sum in different lanes, on whatever there is.
        device.gpu.profile.kind = DeviceKind::Discrete;
        let spec = |dtype, form, epilogue| matmul::Spec { dtype, form, normed: false, epilogue, batch: Batch::Rows };
        let mut specs = Vec::new();
        for (dtype, form) in [
            (DType::F32, Form::F32),
            (DType::Q4_1, Form::F32),
            (DType::Q4_1, Form::Int12),
            (DType::Q5_0, Form::F32),
            (DType::Q6_K, Form::Int12),
            (DType::Q4_K, Form::F32),
        ] {
            let tiles: &[u32] = if device.mode == ShaderMode::Trusted { &[1, 2, 4] } else { &[2] };
            specs.extend(tiles.iter().map(|&tile| (spec(dtype, form, Epilogue::Store), tile)));
        }
        let normed = matmul::Spec { normed: true, ..spec(DType::Q4_1, Form::Int12, Epilogue::Store) };
        specs.extend([1, 4].map(|tile| (normed, tile)));
        for epilogue in [Epilogue::AddLeft, Epilogue::ActMulInt12(Activation::Silu)] {
            specs.extend([1, 4].map(|tile| (spec(DType::Q4_1, Form::Int12, epilogue), tile)));
        }
        for form in [Form::F32, Form::Int12] {
            specs.push((spec(DType::Q8_0, form, Epilogue::ActMul(Activation::Silu)), 1));
        }
        let rig = &Rig::new(&device.gpu);
        // Eleven blocks in five segments: the last ones are short or empty.
        for blocks in [1, 11] {
            matmul_family(&device, rig, blocks, &specs);
        }
    }
}

/// What may be measured and chosen by its speed must not be seen in any result.
#[test]
fn products_have_the_same_bits_in_every_shape_that_may_be_chosen() {
    for mut device in devices().into_iter().filter(|device| device.mode == ShaderMode::Trusted) {
        for kind in [device.gpu.profile.kind, DeviceKind::Discrete] {
            device.gpu.profile.kind = kind;
            let mut first: Option<Vec<Vec<u32>>> = None;
            for shape in product_candidates(&device.gpu.profile) {
                device.gpu.profile.products = Some(shape);
                let rig = &Rig::new(&device.gpu);
                let run = |dtype, form, epilogue, tile, tokens| {
                    let spec = matmul::Spec { dtype, form, normed: false, epilogue, batch: Batch::Rows };
                    let sizes = Shape { tokens, rows: 300, blocks: 11, shards: 2 };
                    bits(&device, &(shape, tile), matrix::matmul(rig, &spec, tile, &sizes, Spread::Heavy))
                };
                let found = vec![
                    run(DType::Q4_1, Form::F32, Epilogue::Store, 1, 1),
                    run(DType::Q4_1, Form::Int12, Epilogue::Store, 1, 1),
                    run(DType::Q8_0, Form::Int12, Epilogue::Add, 2, 2),
                    run(DType::F16, Form::F32, Epilogue::ActMul(Activation::Silu), 4, 7),
                ];
                let first = first.get_or_insert_with(|| found.clone());
                assert!(*first == found, "{} as {kind:?}: {shape:?}", device.name);
            }
            device.gpu.profile.products = None;
        }
    }
}

#[test]
fn embeddings_are_exact() {
    on_every_device(|device, rig| {
        let mut all = Vec::new();
        for dtype in DType::ALL {
            for (rows, spread) in [(70, Spread::Heavy), (32, Spread::Extreme)] {
                let run = |shards| {
                    let shape = Shape { tokens: 9, rows, blocks: 3, shards };
                    bits(device, &(dtype, shape), matrix::embed(rig, dtype, Table::Tokens, &shape, spread))
                };
                let whole = run(1);
                assert!(run(3) == whole, "{}: {dtype} in shards", device.name);
                all.push(whole);
            }
        }
        for dtype in [DType::F32, DType::F16] {
            let run = |shards| {
                let shape = Shape { tokens: 9, rows: 70, blocks: 3, shards };
                let outcome = matrix::embed(rig, dtype, Table::Positions, &shape, Spread::Plain);
                bits(device, &("positions", dtype, shape), outcome)
            };
            let whole = run(1);
            assert!(run(3) == whole, "{}: positions in shards", device.name);
            all.push(whole);
        }
        all
    });
}

#[test]
fn norms_and_activations_agree_with_their_twins() {
    on_every_device(|device, rig| {
        let mut all = Vec::new();
        for (tokens, width) in [(1, 32), (7, 64), (5, 576), (2, 2048)] {
            for spread in [Spread::Plain, Spread::Heavy, Spread::Extreme] {
                for kind in [NormKind::Rms, NormKind::Layer] {
                    for which in [Rows::All, Rows::Wanted] {
                        for form in [Form::F32, Form::Int12] {
                            let what = (kind, which, form, tokens, width, spread);
                            let outcome = norms::norm(rig, kind, [tokens, width], (which, form), spread);
                            all.push(bits(device, &what, outcome));
                        }
                    }
                }
                for next in [Next::None, Next::Rms(Form::F32), Next::Rms(Form::Int12)] {
                    let what = ("norm_add", next, tokens, width, spread);
                    all.push(bits(device, &what, norms::norm_add(rig, next, tokens, width, spread)));
                }
                all.push(bits(
                    device,
                    &("quantize", tokens, width, spread),
                    self_test::int12::quantize(rig, tokens, width / 32, spread),
                ));
                let what = ("qk_norm", tokens, width, spread);
                all.push(bits(device, &what, norms::qk_norm(rig, tokens, width, width / 2, spread)));
            }
        }
        all.push(bits(device, &"soft limit", matrix::soft_cap(rig)));
        for activation in Activation::ALL {
            for (tokens, width) in [(1, 32), (9, 96), (3, 1536)] {
                let what = (activation, tokens, width);
                all.push(bits(device, &what, rows::act_mul(rig, activation, tokens, width)));
            }
        }
        all
    });
}

#[test]
fn heads_have_the_same_bits_from_one_product_as_from_two_dispatches() {
    on_every_device(|device, rig| {
        let mut all = Vec::new();
        for (index, (heads, kv_heads, head_dim, rotary_dim)) in
            [(9, 3, 64, 64), (4, 4, 32, 32), (6, 2, 96, 32), (3, 1, 128, 0), (2, 1, 256, 256)].into_iter().enumerate()
        {
            let spec = Heads { heads, kv_heads, head_dim, rotary_dim, kv: [KvDtype::F16, KvDtype::F32][index % 2] };
            for (dtype, form) in [(DType::F32, Form::F32), (DType::Q4_1, Form::Int12), (DType::Q8_0, Form::Int12)] {
                for (tile, tokens) in [(1, 1), (1, 3), (8, 11)] {
                    let what = (spec, dtype, tile, tokens);
                    all.push(bits(device, &what, heads::heads(rig, dtype, form, spec, tile, tokens)));
                }
            }
        }
        all
    });
}

#[test]
fn rotation_writes_its_own_cache_entries_and_nothing_else() {
    on_every_device(|device, rig| {
        let mut all = Vec::new();
        for (index, (heads, kv_heads, head_dim, rotary_dim, head_norm)) in [
            (9, 3, 64, 64, None),
            (4, 2, 32, 24, None),
            (3, 1, 128, 128, Some(1e-6)),
            (2, 2, 16, 8, Some(1e-5)),
            (2, 1, 256, 256, Some(1e-6)),
            (3, 3, 16, 6, None),
            (2, 2, 24, 2, Some(1e-5)),
            (4, 4, 16, 0, None),
            (4, 2, 16, 0, Some(1e-5)),
            (3, 2, 96, 96, None),
        ]
        .into_iter()
        .enumerate()
        {
            let other = [KvDtype::F16, KvDtype::F32][index % 2];
            let blocks = KvDtype::Q8_0.holds(head_dim).then_some(KvDtype::Q8_0);
            for kv in [other].into_iter().chain(blocks) {
                let spec = rope_kv::Spec { heads, kv_heads, head_dim, rotary_dim, head_norm, kv };
                all.push(bits(device, &spec, rows::rope_kv(rig, &spec, 7)));
            }
        }
        all
    });
}

/// Bits are not compared: there are many numbers that are none.
#[test]
fn keys_and_values_that_are_not_finite_stay_seen() {
    on_every_device(|device, rig| {
        for kv in KvDtype::ALL {
            for broken in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
                let outcome = rows::broken_entries(rig, kv, broken);
                assert!(outcome.is_ok(), "{}: {kv}: {outcome:?}", device.name);
            }
        }
        Vec::new()
    });
}

/// What a discrete card would run: wide workgroups, segments spread over lanes, reductions through workgroup memory.
#[test]
fn the_variants_of_a_card_work_here_too() {
    for mut device in devices().into_iter().filter(|device| device.mode == ShaderMode::Trusted) {
        device.gpu.profile.kind = DeviceKind::Discrete;
        for verdict in self_test::run(&device.gpu).unwrap() {
            assert!(verdict.outcome.is_ok(), "{}: {verdict:?}", device.name);
        }
        let rig = &Rig::new(&device.gpu);
        for (window, softcap) in [(None, None), (Some(100), Some(3.0))] {
            let spec = attention::Spec { window, softcap, ..attention_spec(9, 3, 64, KvDtype::F16) };
            let run = |path| bits(&device, &path, attend(rig, &spec, (path, Form::F32), &[1, 17, 257, 600], 3));
            let prompt = run(Path::Prefill);
            assert!(run(Path::Decode) == prompt && run(Path::Split) == prompt, "{}", device.name);
        }
        mixtures(&device, rig);
    }
}

fn attention_spec(heads: usize, kv_heads: usize, head_dim: usize, kv: KvDtype) -> attention::Spec {
    attention::Spec::new(&AttnSpec { scale: 0.3, ..AttnSpec::plain(heads, kv_heads, head_dim) }, kv)
}

/// One context on every path, each of which must give the same bits.
fn every_path(device: &Device, rig: &Rig<'_>, spec: &attention::Spec, contexts: &[usize]) -> Vec<u32> {
    let run = |path, form| bits(device, &(spec, path, form), attend(rig, spec, (path, form), contexts, 3));
    let [_, last] = [Form::F32, spec.form(Form::Int12)].map(|form| {
        let prompt = run(Path::Prefill, form);
        assert!(run(Path::Decode, form) == prompt, "{}: {spec:?}, {form:?}, decode is not prefill", device.name);
        assert!(run(Path::Split, form) == prompt, "{}: {spec:?}, {form:?}, split is not prefill", device.name);
        prompt
    });
    last
}

/// Windows that end within a block and within a chunk, that fill them exactly, and that are wider than some contexts; what is
/// outside a window is garbage that nobody may read.
#[test]
fn windows_and_caps_have_the_same_bits_on_every_path() {
    const CONTEXTS: [usize; 7] = [1, 23, 24, 25, 257, 300, 600];
    on_every_device(|device, rig| {
        let mut all = Vec::new();
        for (heads, kv_heads, head_dim, kv, window, softcap) in [
            (4, 2, 16, KvDtype::F32, Some(24), None),
            (4, 2, 16, KvDtype::F16, Some(1), None),
            (6, 2, 32, KvDtype::F16, Some(256), Some(0.5)),
            (4, 1, 256, KvDtype::F16, Some(257), Some(5.0)),
            (2, 2, 16, KvDtype::F32, None, Some(50.0)),
            (4, 2, 32, KvDtype::Q8_0, Some(24), Some(5.0)),
        ] {
            if slow(&device.gpu) && head_dim > 100 {
                continue;
            }
            let spec = attention::Spec { window, softcap, ..attention_spec(heads, kv_heads, head_dim, kv) };
            all.push(every_path(device, rig, &spec, &CONTEXTS));
        }
        // A window that hides nothing changes nothing.
        let plain = attention_spec(4, 2, 16, KvDtype::F32);
        let wide = attention::Spec { window: Some(600), ..plain };
        let run =
            |spec: &attention::Spec| bits(device, spec, attend(rig, spec, (Path::Split, Form::F32), &CONTEXTS, 3));
        assert!(run(&plain) == run(&wide), "{}: a wide window", device.name);
        all
    });
}

#[test]
fn attention_has_the_same_bits_in_a_prompt_alone_and_in_chunks() {
    const CONTEXTS: [usize; 8] = [1, 15, 16, 17, 255, 256, 257, 600];
    on_every_device(|device, rig| {
        let mut all = Vec::new();
        let shapes = [
            (9, 3, 64, KvDtype::F16),
            (4, 4, 16, KvDtype::F32),
            (4, 2, 64, KvDtype::Q8_0),
            (8, 1, 128, KvDtype::F16),
            (6, 2, 96, KvDtype::Q8_0),
        ];
        let shapes = if device.mode == ShaderMode::Checked { &shapes[..3] } else { &shapes[..] };
        let shapes = if slow(&device.gpu) { &shapes[..3] } else { shapes };
        for &(heads, kv_heads, head_dim, kv) in shapes {
            all.push(every_path(device, rig, &attention_spec(heads, kv_heads, head_dim, kv), &CONTEXTS));
        }
        // Checked devices try fewer shapes; what both tried is compared.
        all.truncate(3);
        all
    });
}

/// Mixtures on one device: no tile, shard or number of rows changes a bit.
fn mixtures(device: &Device, rig: &Rig<'_>) -> Vec<Vec<u32>> {
    let mut all = Vec::new();
    let (small, large) = if slow(&device.gpu) { (5, 9) } else { (9, 33) };
    for (count, chosen, normalize) in [(8, 2, true), (60, 7, false), (3, 3, true), (5, 1, false)] {
        let spec = experts::Spec { count, chosen, normalize };
        let run = |rows, tile| bits(device, &(spec, rows, tile), self_test::experts::route(rig, &spec, rows, tile));
        let alone = run(large, 1);
        for tile in [2, 4, 8] {
            assert!(run(large, tile) == alone, "{}: {spec:?} in tiles of {tile}", device.name);
            let few = run(small, tile);
            assert!(few == alone[..few.len()], "{}: {spec:?}, {small} rows", device.name);
        }
        run(1, 1);
        all.push(alone);
    }
    let spec = experts::Spec { count: 6, chosen: 2, normalize: true };
    for (dtype, form, epilogue, shared_input) in [
        (DType::F16, Form::F32, Epilogue::ActMul(Activation::Silu), true),
        (DType::Q4_1, Form::F32, Epilogue::ActMul(Activation::GeluTanh), true),
        (DType::Q8_0, Form::F32, Epilogue::Store, false),
        (DType::Q4_1, Form::Int12, Epilogue::ActMul(Activation::Silu), true),
        (DType::Q5_0, Form::Int12, Epilogue::Store, false),
        (DType::Q4_0, Form::Int12, Epilogue::ActMulInt12(Activation::Silu), true),
    ] {
        let run = |rows, tile, shards| {
            let outputs = if epilogue.leaves() { 64 } else { 45 };
            let shape = self_test::experts::Shape { rows, outputs, blocks: 3, shards, shared_input };
            let outcome = self_test::experts::product(rig, &spec, (dtype, form), epilogue, tile, &shape);
            bits(device, &(dtype, epilogue, tile, shape), outcome)
        };
        let alone = run(large, 1, 1);
        for (tile, shards) in [(1, 4), (2, 1), (4, 3), (8, 2)] {
            assert!(run(large, tile, shards) == alone, "{}: {dtype}, tile {tile}, {shards} shards", device.name);
        }
        let few = run(small, 8, 1);
        assert!(few == alone[..few.len()], "{}: {dtype}, {small} rows", device.name);
        all.push(alone);
    }
    for sum in [Sum::Added, Sum::Stored] {
        all.push(bits(device, &sum, self_test::experts::combine(rig, &spec, sum, 5, 96)));
    }
    all
}

#[test]
fn experts_have_the_same_bits_for_every_tile_shard_and_number_of_rows() {
    on_every_device(mixtures);
}

/// The vocabulary of Gemma 3: searches read it many times, and software adapters end long loops without a word.
#[test]
fn filters_hold_for_the_largest_vocabularies() {
    for device in devices().into_iter().filter(|device| device.mode == ShaderMode::Trusted) {
        let rig = &Rig::new(&device.gpu);
        let mut case = cases::large_vocabulary(262_144);
        if slow(&device.gpu) {
            case.rows.drain(1..case.rows.len() - 2);
        }
        bits(&device, &case.name, sampler::sample(rig, &case));
        let case = cases::large_and_level(262_144);
        bits(&device, &case.name, sampler::sample(rig, &case));
    }
}

#[test]
fn slots_rows_and_the_list_of_the_doctor() {
    on_every_device(|device, rig| {
        let mut all =
            vec![bits(device, &"resolve", tables::resolve(rig)), bits(device, &"update", tables::update(rig))];
        for case in cases::doctor_cases() {
            all.push(bits(device, &case.name, sampler::sample(rig, &case)));
        }
        all
    });
    let device = devices().remove(0);
    for verdict in self_test::run(&device.gpu).unwrap() {
        assert!(verdict.outcome.is_ok(), "{}: {verdict:?}", device.name);
    }
}

#[test]
fn ties_go_to_the_lowest_token_when_greedy() {
    on_every_device(|device, rig| {
        let mut logits = vec![-3.0; 2500];
        for token in [2400, 1025, 1024, 700] {
            logits[token] = 2.0;
        }
        let mut zeros = vec![-0.0; 2500];
        zeros[3] = 0.0;
        let rows = vec![greedy(4), greedy(5)];
        let case = Case { name: "ties".into(), logits: vec![logits, zeros], rows };
        let sampled = sampler::run(rig, &case).unwrap().sampled;
        assert_eq!([sampled[0].token, sampled[1].token], [700, 0], "{}", device.name);
        vec![bits(device, &"ties", sampler::sample(rig, &case))]
    });
}

fn greedy(position: u32) -> Row {
    plain_row(&SamplingParams::default(), 0, position)
}

/// Equal logits turn a random word into the token that its leading bits name.
#[test]
fn random_words_are_those_of_the_host() {
    const VOCAB: u32 = 1 << 16;
    on_every_device(|device, rig| {
        let params = SamplingParams { temperature: 1.0, ..Default::default() };
        let count = if slow(&device.gpu) { 24 } else { 300 };
        let seed = |index: u32| u64::from(index.wrapping_mul(0x9e37_79b9)) << 32 | u64::from(index * index);
        let rows: Vec<Row> = (0..count).map(|index| plain_row(&params, seed(index), 7 * index)).collect();
        let case = Case { name: "words".into(), logits: vec![vec![1.25; VOCAB as usize]], rows };
        let sampled = sampler::run(rig, &case).unwrap().sampled;
        for (index, sampled) in (0..count).zip(&sampled) {
            let word = rng::token_word(seed(index), 7 * index + 1);
            assert_eq!(sampled.token, word >> 16, "{}: row {index}", device.name);
        }
        vec![sampled.iter().map(|sampled| sampled.token).collect()]
    });
}
