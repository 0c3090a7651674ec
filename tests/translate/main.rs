//! Every variant of every kernel, for adapters of all kinds, without one: linked, parsed, validated with only what the
//! adapter has, written as SPIR-V, MSL and HLSL, held against the limits of the weakest adapter, and created as a pipeline
//! on the device that executes nothing.

mod lint;

use naga::back::{hlsl, msl, spv};
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::{Module, ShaderStage};
use octavo::gpu::profile::BASELINE_SHARED_BYTES;
use octavo::gpu::reflect::{self, BindingKind, Reflection};
use octavo::gpu::shader::{Linked, link};
use octavo::gpu::{DeviceKind, Gpu, MatrixTile, Profile, Variant};
use octavo::kernels;
use std::collections::HashSet;
use std::process::Command;

/// Storage buffers that a kernel may bind. WebGPU guarantees eight, and on Metal the sizes of arrays take a hidden slot.
const STORAGE_BUFFERS: usize = octavo::gpu::profile::BASELINE_STORAGE_BUFFERS as usize - 1;

fn profiles() -> Vec<Profile> {
    let named = |name: &str, profile: Profile| Profile { name: name.into(), ..profile };
    let cuda = Profile { matrix: Some(MatrixTile::Sixteen), ..Profile::cuda_class() };
    vec![
        named("weakest software", Profile::baseline(DeviceKind::Cpu)),
        named("weakest card", Profile::baseline(DeviceKind::Discrete)),
        cuda.clone(),
        // Metal hides the size of subgroups; Apple's memory is the system's.
        named(
            "Apple-like",
            Profile {
                backend: "metal".into(),
                vendor: 0x106b,
                kind: DeviceKind::Integrated,
                subgroups: Some(4..=64),
                shared_bytes: 32 << 10,
                matrix: Some(MatrixTile::Eight),
                ..cuda.clone()
            },
        ),
        named(
            "Intel-like",
            Profile {
                vendor: 0x8086,
                kind: DeviceKind::Integrated,
                subgroups: Some(8..=32),
                shared_bytes: 32 << 10,
                matrix: None,
                ..cuda.clone()
            },
        ),
        named(
            "AMD-like, waves of 64",
            Profile { vendor: 0x1002, subgroups: Some(64..=64), matrix: None, ..cuda.clone() },
        ),
        named(
            "lavapipe-like",
            Profile { kind: DeviceKind::Cpu, subgroups: Some(8..=8), int64: true, matrix: None, ..cuda },
        ),
    ]
}

/// Whether this is about the kernel that runs on matrix units.
fn uses_units(label: &str) -> bool {
    label.contains("matmul_units")
}

/// Everything that a test wants to see of one variant.
struct Translated {
    label: String,
    linked: Linked,
    reflection: Reflection,
    module: Module,
    info: ModuleInfo,
}

/// Each distinct variant of a profile, validated with the profile's capabilities.
fn translated(profile: &Profile) -> Vec<Translated> {
    let mut seen: HashSet<Variant> = HashSet::new();
    let variants = kernels::ALL.iter().flat_map(|kernel| (kernel.variants)(profile));
    let all: Vec<Translated> = variants
        .filter(|variant| seen.insert(variant.clone()))
        .map(|variant| {
            let label = format!("{}: {variant}", profile.name);
            let linked = link(&variant).unwrap_or_else(|error| panic!("{label}: {error}"));
            let reflection = reflect::reflect(&linked).unwrap_or_else(|error| panic!("{label}: {error}"));
            let module = reflect::parse(&linked).unwrap();
            // Packing halves into words is part of WebGPU, though naga counts it as a capability.
            let mut capabilities = Capabilities::SHADER_FLOAT16_IN_FLOAT32;
            capabilities.set(Capabilities::SUBGROUP, profile.subgroups.is_some());
            capabilities.set(Capabilities::SHADER_INT64, profile.int64);
            let units = Capabilities::COOPERATIVE_MATRIX | Capabilities::SHADER_FLOAT16;
            capabilities.set(units, profile.matrix.is_some());
            let info = Validator::new(ValidationFlags::all(), capabilities)
                .validate(&module)
                .unwrap_or_else(|error| panic!("{label}: {}", error.emit_to_string(&linked.source)));
            let invocations: u32 = variant.workgroup.iter().product();
            assert!(invocations <= profile.max_invocations, "{label}: {invocations} invocations");
            Translated { label, linked, reflection, module, info }
        })
        .collect();
    assert!(all.len() > 100, "{}: only {} variants", profile.name, all.len());
    all
}

#[test]
fn every_kernel_in_the_folder_is_in_the_list() {
    let listed: Vec<String> = kernels::ALL.iter().map(|kernel| format!("kernels/{}.wgsl", kernel.name)).collect();
    let files: Vec<&str> = octavo::gpu::shader_paths().filter(|path| path.starts_with("kernels/")).collect();
    assert_eq!(listed, files);
    for kernel in kernels::ALL {
        for variant in (kernel.variants)(&Profile::cuda_class()) {
            assert_eq!(variant.kernel, kernel.name);
        }
    }
}

#[test]
fn kernels_keep_to_the_limits_of_the_weakest_adapter() {
    for profile in profiles() {
        for Translated { label, linked, reflection, module, .. } in translated(&profile) {
            let storage = reflection.bindings.iter().filter(|binding| binding.kind != BindingKind::Uniform).count();
            assert!(storage <= STORAGE_BUFFERS, "{label} binds {storage} storage buffers");
            let uniforms = reflection.bindings.len() - storage;
            assert!(uniforms <= 1, "{label} binds {uniforms} uniform buffers");
            let shared = reflection.shared_bytes;
            assert!(shared <= BASELINE_SHARED_BYTES, "{label} takes {shared} bytes of workgroup memory");
            // Only what is optional as a whole may ask for an extension.
            let enables = linked.source.lines().any(|line| line.trim_start().starts_with("enable "));
            assert_eq!(enables, uses_units(&label), "{label}");
            assert!(linked.source.contains("@workgroup_size(WG_X, WG_Y, WG_Z)"), "{label} has a size of its own");
            let misplaced = lint::misplaced(&module);
            assert!(misplaced.is_empty(), "{label}: {}", misplaced.join("; "));
        }
    }
}

#[test]
fn every_variant_can_be_written_for_every_backend() {
    let validator = Command::new("spirv-val").arg("--version").output().is_ok_and(|output| output.status.success());
    if !validator {
        println!("spirv-val (package spirv-tools) is not installed: SPIR-V is written, but not validated");
    }
    let folder = tempfile::tempdir().unwrap();
    for profile in profiles() {
        for (index, one) in translated(&profile).iter().enumerate() {
            let words = spirv(one);
            // The profiles differ in workgroups more than in code, so one of each kind is enough for the slow part.
            let try_it = ["weakest software", "weakest card", "lavapipe-like"].contains(&&*profile.name);
            if validator && (try_it || index % 8 == 0) {
                let file = folder.path().join("kernel.spv");
                std::fs::write(&file, bytemuck::cast_slice::<u32, u8>(&words)).unwrap();
                let target = if uses_units(&one.label) { "vulkan1.3" } else { "vulkan1.1" };
                let output = Command::new("spirv-val").args(["--target-env", target]).arg(&file).output().unwrap();
                // Newer validators object to the stride of every array in workgroup memory; drivers accept it.
                let text = String::from_utf8_lossy(&output.stderr).into_owned();
                // Older ones do not know matrix units.
                let known = ["VUID-StandaloneSpirv-None-10684", "Invalid capability operand: 6022"];
                let serious = !output.status.success() && !known.iter().any(|part| text.contains(part));
                assert!(!serious, "{}: {text}", one.label);
            }
            let text = metal(one);
            assert!(text.contains("kernel void"), "{}: no Metal kernel", one.label);
            if uses_units(&one.label) {
                let matrix = if profile.backend == "metal" { "simdgroup_half8x8" } else { "simdgroup_half16x16" };
                assert!(text.contains(matrix) && text.contains("simdgroup_multiply_accumulate"), "{}", one.label);
                // Direct3D has none, and its adapters never name a tile.
                continue;
            }
            let text = direct3d(one);
            assert!(text.contains("[numthreads("), "{}: no HLSL entry point", one.label);
        }
    }
}

fn spirv(one: &Translated) -> Vec<u32> {
    let options = spv::Options { lang_version: (1, 3), ..Default::default() };
    let pipeline = spv::PipelineOptions { shader_stage: ShaderStage::Compute, entry_point: "main".into() };
    spv::write_vec(&one.module, &one.info, &options, Some(&pipeline))
        .unwrap_or_else(|error| panic!("{}: {error}", one.label))
}

fn metal(one: &Translated) -> String {
    // Buffers as wgpu numbers them: in order of binding, then the sizes of runtime arrays.
    let buffers = one.reflection.bindings.iter().zip(0..).map(|(binding, slot)| {
        let target = msl::BindTarget {
            buffer: Some(slot),
            mutable: binding.kind == BindingKind::ReadWrite,
            ..Default::default()
        };
        (naga::ResourceBinding { group: 0, binding: binding.index }, target)
    });
    let sizes_buffer = Some(one.reflection.bindings.len() as u8);
    let resources = msl::EntryPointResources { resources: buffers.collect(), immediates_buffer: None, sizes_buffer };
    let options = msl::Options {
        lang_version: (2, 3),
        per_entry_point_map: [("main".to_owned(), resources)].into(),
        fake_missing_bindings: false,
        ..Default::default()
    };
    let pipeline =
        msl::PipelineOptions { entry_point: Some((ShaderStage::Compute, "main".into())), ..Default::default() };
    let (text, info) = msl::write_string(&one.module, &one.info, &options, &pipeline)
        .unwrap_or_else(|error| panic!("{}: {error}", one.label));
    for name in info.entry_point_names {
        name.unwrap_or_else(|error| panic!("{}: {error}", one.label));
    }
    text
}

fn direct3d(one: &Translated) -> String {
    let options = hlsl::Options { shader_model: hlsl::ShaderModel::V6_0, ..Default::default() };
    let pipeline = hlsl::PipelineOptions { entry_point: Some((ShaderStage::Compute, "main".into())) };
    let mut text = String::new();
    hlsl::Writer::new(&mut text, &options, &pipeline)
        .write(&one.module, &one.info, None)
        .unwrap_or_else(|error| panic!("{}: {error}", one.label));
    text
}

#[test]
fn wgpu_accepts_every_pipeline() {
    for profile in profiles() {
        let gpu = Gpu::noop(profile.clone());
        let mut count = 0;
        for kernel in kernels::ALL {
            for variant in (kernel.variants)(&profile) {
                gpu.registry.get(&variant).unwrap_or_else(|error| panic!("{}: {error}", profile.name));
                count += 1;
            }
        }
        gpu.check().unwrap();
        println!("{}: {count} variants, {} pipelines", profile.name, gpu.registry.pipeline_count());
    }
}

#[test]
fn the_lint_sees_operations_that_lanes_reach_apart() {
    let misplaced = |body: &str| {
        let source = format!(
            "var<workgroup> shared_value: u32;
             @group(0) @binding(0) var<storage, read_write> out: array<u32>;
             fn meet() {{ workgroupBarrier(); }}
             fn least(lane: u32) -> u32 {{ return min(lane, 3u); }}
             fn together(value: u32) -> u32 {{ return subgroupAdd(value); }}
             @compute @workgroup_size(8) fn main(
                @builtin(local_invocation_id) local: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>
             ) {{ let lane = local.x; {body} }}"
        );
        let module = naga::front::wgsl::parse_str(&source).unwrap_or_else(|e| panic!("{}", e.emit_to_string(&source)));
        !lint::misplaced(&module).is_empty()
    };
    let apart = [
        "if lane < 3u { workgroupBarrier(); }",
        "if lane < 3u { meet(); }",
        "if lane < 3u { return; } workgroupBarrier();",
        "if out[lane] == 1u { if group.x == 0u { return; } } workgroupBarrier();",
        "for (var i = lane; i < 20u; i += 8u) { workgroupBarrier(); }",
        "for (var i = 0u; i < 20u; i++) { if i > lane { break; } workgroupBarrier(); }",
        "for (var i = 0u; i < 20u; i++) { workgroupBarrier(); if i > lane { continue; } meet(); }",
        "var i = 0u; if lane == 1u { i = 4u; } if i == 4u { workgroupBarrier(); }",
        "if least(lane) == 2u { out[0] = together(1u); }",
        "var a: array<u32, 2>; a[0] = lane; if a[0] == 0u { out[0] = subgroupAdd(1u); }",
        "switch lane { case 0u: { workgroupBarrier(); } default: {} }",
        "if subgroupExclusiveAdd(1u) == 0u { workgroupBarrier(); }",
    ];
    for body in apart {
        assert!(misplaced(body), "not seen: {body}");
    }
    let together = [
        "if group.x < 3u { workgroupBarrier(); }",
        "if out[group.x] == 1u { return; } meet();",
        "for (var i = 0u; i < out[0]; i++) { workgroupBarrier(); }",
        "for (var i = lane; i < 20u; i += 8u) { out[i] = lane; } workgroupBarrier();",
        "for (var i = lane; i < 20u; i += 8u) { if i == 9u { break; } } workgroupBarrier();",
        "if lane == 0u { shared_value = 7u; } workgroupBarrier(); if shared_value == 7u { meet(); }",
        "if together(lane) == 28u { workgroupBarrier(); }",
        "var i = 0u; while together(lane) > i { i += 1u; }",
        "if least(group.x) == 2u { meet(); }",
    ];
    for body in together {
        assert!(!misplaced(body), "wrongly reported: {body}");
    }
}
