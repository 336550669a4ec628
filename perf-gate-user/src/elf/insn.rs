//! Where in a function a uprobe can sit, found by decoding its first instructions.
//!
//! A uprobe replaces one instruction by a breakpoint and lets the kernel run the original elsewhere.
//! The kernel (arch/x86/kernel/uprobes.c) refuses what it cannot run there: `lock` and segment
//! prefixes, vector-encoded and privileged instructions, interrupts. Worse, when the probe is attached
//! before the program is mapped, the refusal is silent and the probe never fires. Node's
//! `NodeArrayBufferAllocator::Free` begins with `lock sub` on four majors, so this happens in practice.
//! Then the next instruction boundary will do, as long as what was stepped over neither wrote a
//! register that the probe reads nor left the straight line. Few instructions (`push`, `nop`, relative
//! jumps and calls) are emulated by the kernel in 0.2-0.8 us, all others are single-stepped, which
//! costs 10 us and more on virtual machines: [`Site::slow`] says so.

use iced_x86::{
    Decoder, DecoderOptions, EncodingKind, FlowControl, Instruction, InstructionInfoFactory,
    Mnemonic, OpAccess, OpKind, Register,
};

/// Enough for [`STEPS`] instructions of the longest kind.
pub const WINDOW: usize = 96;
/// How many instructions may be stepped over.
const STEPS: usize = 6;

/// The place of an entry probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// Bytes behind the function's first.
    pub delta: u64,
    /// The kernel single-steps the instruction there.
    pub slow: bool,
}

/// Why no probe can sit at the start of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("its first bytes are not valid x86-64 code")]
    NotCode,
    #[error("the kernel refuses a probe on its first instruction")]
    First,
    #[error(
        "the kernel refuses a probe on its first instruction, which also overwrites an argument"
    )]
    ArgumentLost,
    #[error("the kernel refuses a probe on its first instructions, up to a jump")]
    StraightLineEnds,
}

/// Argument registers by slot number.
const ARGUMENTS: [Register; 6] = [
    Register::RDI,
    Register::RSI,
    Register::RDX,
    Register::RCX,
    Register::R8,
    Register::R9,
];

/// First boundary at or after the function's start for a probe that reads the argument `slots`
/// (numbers above 5, that is on the stack, need the stack pointer as it was at entry).
pub fn entry_site(code: &[u8], slots: &[u8]) -> Result<Site, Refusal> {
    let mut kept: Vec<Register> = slots
        .iter()
        .filter_map(|&slot| ARGUMENTS.get(usize::from(slot)).copied())
        .collect();
    if slots
        .iter()
        .any(|&slot| usize::from(slot) >= ARGUMENTS.len() && slot != perf_gate_ebpf::NO_ARG)
    {
        kept.push(Register::RSP);
    }
    let mut infos = InstructionInfoFactory::new();
    let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    for _ in 0..STEPS {
        let step = decode(&mut decoder)?;
        if !refused(&step) {
            return Ok(Site {
                delta: step.ip(),
                slow: !emulated(&step),
            });
        }
        if step.flow_control() != FlowControl::Next {
            return Err(Refusal::StraightLineEnds);
        }
        let lost = infos.info(&step).used_registers().iter().any(|used| {
            let writes = matches!(
                used.access(),
                OpAccess::Write
                    | OpAccess::CondWrite
                    | OpAccess::ReadWrite
                    | OpAccess::ReadCondWrite
            );
            writes && kept.contains(&used.register().full_register())
        });
        if lost {
            return Err(Refusal::ArgumentLost);
        }
    }
    Err(Refusal::First)
}

/// Whether a return probe can be set. The kernel finds the return address at the top of the stack,
/// so it must sit on the very first instruction.
pub fn return_site(code: &[u8]) -> Result<Site, Refusal> {
    let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    let first = decode(&mut decoder)?;
    if refused(&first) {
        return Err(Refusal::First);
    }
    Ok(Site {
        delta: 0,
        slow: !emulated(&first),
    })
}

fn decode(decoder: &mut Decoder) -> Result<Instruction, Refusal> {
    if !decoder.can_decode() {
        return Err(Refusal::NotCode);
    }
    let step = decoder.decode();
    if step.is_invalid() {
        return Err(Refusal::NotCode);
    }
    Ok(step)
}

/// Stricter than the kernel where it hardly matters: the next boundary is as good.
fn refused(step: &Instruction) -> bool {
    step.has_lock_prefix()
        || matches!(
            step.segment_prefix(),
            Register::ES | Register::CS | Register::SS | Register::DS
        )
        || step.encoding() != EncodingKind::Legacy
        || step.is_privileged()
        || matches!(
            step.flow_control(),
            FlowControl::Interrupt | FlowControl::Exception | FlowControl::XbeginXabortXend
        )
        || matches!(step.mnemonic(), Mnemonic::Syscall | Mnemonic::Sysenter)
        || masks_exceptions(step)
}

/// Loading SS holds off the trap that ends a single step.
fn masks_exceptions(step: &Instruction) -> bool {
    matches!(step.mnemonic(), Mnemonic::Pop | Mnemonic::Mov)
        && step.op0_kind() == OpKind::Register
        && step.op0_register() == Register::SS
}

fn emulated(step: &Instruction) -> bool {
    match step.mnemonic() {
        Mnemonic::Nop => true,
        Mnemonic::Push => {
            step.op0_kind() == OpKind::Register && step.op0_register().is_gpr64() && step.len() <= 2
        }
        Mnemonic::Jmp | Mnemonic::Call => matches!(step.op0_kind(), OpKind::NearBranch64),
        _ => step.is_jcc_short_or_near(),
    }
}
