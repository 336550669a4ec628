//! Small real attempts at what observing needs: each makes the thing and lets go of it at once.

use super::bpf::{self, Code, UPROBE_MULTI};
use aya_obj::generated::{bpf_insn, bpf_prog_type};
use perf_event::{Builder, events};
use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
};

/// Creates a map of one entry: needs CAP_BPF.
pub fn map() -> io::Result<()> {
    bpf::array_of_one().map(drop)
}

/// Loads a tracing program that does nothing: needs CAP_BPF and CAP_PERFMON.
pub fn program() -> io::Result<()> {
    load(0).map(drop)
}

/// Whether probes can be attached many at a time (Linux 6.6).
pub fn multi() -> io::Result<bool> {
    // Before 6.6 the program is accepted too: the attach type of such programs was not looked at.
    bpf::has_uprobe_multi(load(UPROBE_MULTI)?.as_fd())
}

pub fn software_counter() -> io::Result<()> {
    open(&Builder::new(events::Software::PAGE_FAULTS))
}

pub fn hardware_counter() -> io::Result<()> {
    open(&Builder::new(events::Hardware::INSTRUCTIONS))
}

/// Opens a hardware breakpoint on a word of our own that nobody writes.
pub fn breakpoint() -> io::Result<()> {
    static WORD: u64 = 0;
    let address = std::ptr::from_ref(&WORD) as u64;
    open(&Builder::new(events::Breakpoint::write(address, 8)))
}

fn open(builder: &Builder) -> io::Result<()> {
    builder.build().map(drop)
}

/// A program that returns at once: `r0 = 0; exit`.
fn load(expected_attach_type: u32) -> io::Result<OwnedFd> {
    const MOV_IMMEDIATE: u8 = 0xb7;
    const EXIT: u8 = 0x95;
    let instruction = |code| bpf_insn {
        code,
        _bitfield_align_1: [],
        _bitfield_1: bpf_insn::new_bitfield_1(0, 0),
        off: 0,
        imm: 0,
    };
    let code = Code {
        name: "nothing",
        kind: bpf_prog_type::BPF_PROG_TYPE_KPROBE as u32,
        expected_attach_type,
        license: c"GPL",
        instructions: &[instruction(MOV_IMMEDIATE), instruction(EXIT)],
    };
    bpf::load(&code).map_err(|refused| refused.source)
}
