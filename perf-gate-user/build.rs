//! Hands the eBPF object to the crate, and refuses one that is not what its sources give.
//!
//! `PERF_GATE_OBJECT` names a copy in `OUT_DIR` for `include_bytes!`; the object's identity goes into
//! `PERF_GATE_OBJECT_SHA256`, `PERF_GATE_OBJECT_ID` (its first 12 hex digits) and
//! `PERF_GATE_OBJECT_COMPILER` for `--version`. Two environment variables steer it:
//! `PERF_GATE_BPF_OBJECT=FILE` embeds another object, freshly built by `cargo xtask build-ebpf --out`;
//! `PERF_GATE_STALE_OBJECT=allow` keeps the build going while the eBPF sources are being edited.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[path = "src/bpf/sources.rs"]
mod sources;

const OBJECT: &str = "perf-gate.bpf.o";

fn main() -> ExitCode {
    match embed() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            // cargo shows `cargo::error` lines as the reason, without a backtrace around them.
            println!("cargo::error={why}");
            ExitCode::FAILURE
        }
    }
}

fn embed() -> Result<(), String> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/bpf");
    for name in ["PERF_GATE_BPF_OBJECT", "PERF_GATE_STALE_OBJECT"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let package = PathBuf::from(
        env::var_os("CARGO_MANIFEST_DIR").ok_or("cargo did not set CARGO_MANIFEST_DIR")?,
    );
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo did not set OUT_DIR")?);
    let (object, compiler) = match env::var_os("PERF_GATE_BPF_OBJECT") {
        Some(file) => {
            let file = PathBuf::from(file);
            println!("cargo::rerun-if-changed={}", file.display());
            let compiler =
                recorded(&file, "compiler").unwrap_or_else(|_| "unknown compiler".to_owned());
            (file, compiler)
        }
        None => committed(&package)?,
    };
    let bytes = read(&object)?;
    let copy = out.join(OBJECT);
    fs::write(&copy, &bytes).map_err(|why| format!("cannot write {}: {why}", copy.display()))?;
    let digest = sources::sha256(&bytes);
    println!("cargo::rustc-env=PERF_GATE_OBJECT={}", copy.display());
    println!("cargo::rustc-env=PERF_GATE_OBJECT_SHA256={digest}");
    println!("cargo::rustc-env=PERF_GATE_OBJECT_ID={}", &digest[..12]);
    println!("cargo::rustc-env=PERF_GATE_OBJECT_COMPILER={compiler}");
    Ok(())
}

/// The committed object and its compiler, after the check that it belongs to the sources in the tree.
fn committed(package: &Path) -> Result<(PathBuf, String), String> {
    let object = package.join("src/bpf").join(OBJECT);
    let compiler = recorded(&object, "compiler")?;
    if env::var_os("PERF_GATE_STALE_OBJECT").is_some_and(|value| value == "allow") {
        return Ok((object, compiler));
    }
    if sources::sha256(&read(&object)?) != recorded(&object, "object_sha256")? {
        return Err(format!(
            "{} is not the object its provenance.json names: run `cargo xtask build-ebpf`",
            object.display()
        ));
    }
    // A package taken out of the workspace has no eBPF sources beside it and nothing to compare with.
    let Some(workspace) = package
        .parent()
        .filter(|dir| dir.join("perf-gate-ebpf/src/main.rs").exists())
    else {
        return Ok((object, compiler));
    };
    for input in [
        "perf-gate-ebpf/src",
        "perf-gate-ebpf/Cargo.toml",
        "Cargo.lock",
    ] {
        println!(
            "cargo::rerun-if-changed={}",
            workspace.join(input).display()
        );
    }
    let source = sources::source_sha256(workspace)
        .map_err(|why| format!("cannot hash the eBPF sources: {why}"))?;
    if source != recorded(&object, "source_sha256")? {
        return Err("the eBPF sources changed: run `cargo xtask build-ebpf` (or set PERF_GATE_STALE_OBJECT=allow to \
                    embed the old object for now)"
            .to_owned());
    }
    Ok((object, compiler))
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    fs::read(file).map_err(|why| {
        format!(
            "cannot read {}: {why}; run `cargo xtask build-ebpf`",
            file.display()
        )
    })
}

/// One string of the provenance.json beside `object`. It is written by xtask, one key a line, so that a
/// prefix reads it without a JSON parser among everybody's build dependencies.
fn recorded(object: &Path, key: &str) -> Result<String, String> {
    let file = object.with_file_name("provenance.json");
    let text = read(&file).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())?;
    let prefix = format!("\"{key}\": \"");
    text.lines()
        .find_map(|line| {
            line.trim()
                .strip_prefix(&prefix)?
                .trim_end_matches(',')
                .strip_suffix('"')
        })
        .map(str::to_owned)
        .ok_or_else(|| {
            format!(
                "{} has no \"{key}\": run `cargo xtask build-ebpf`",
                file.display()
            )
        })
}
