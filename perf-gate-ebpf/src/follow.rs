//! The process tree. Children of a watched process are watched from their fork; every exec is announced,
//! so that the supervisor can look at the new program while that is held at its start. Where nothing can
//! hold it, the process is sent SIGSTOP before its first instruction instead. The record of a process
//! whose last thread is gone moves to the map of the dead.

use crate::{
    atomic,
    maps::{
        BACKGROUND, BLANK_PROC, BLANK_THREAD, CONFIG, CONTROL, DEAD_PROCS, PROCS, SEQ_PROC,
        THREADS, lose, next, now_ns,
    },
};
use aya_ebpf::{
    bindings::bpf_pidns_info,
    helpers::{
        bpf_get_current_pid_tgid, bpf_get_ns_current_pid_tgid, bpf_probe_read_kernel,
        bpf_send_signal,
    },
    programs::RawTracePointContext,
};
use aya_log_ebpf::debug;
use perf_gate_ebpf::{
    CONTROL_EXEC, CONTROL_EXIT, Config, Control, PROC_EXECED, PROC_REPLACED, PROC_ROOT, Proc,
};

const SIGSTOP: u32 = 19;

/// The current process's id in the supervisor's PID namespace, 0 when it lives in another.
#[inline(always)]
fn ns_pid(config: &Config) -> u32 {
    let mut info = bpf_pidns_info { pid: 0, tgid: 0 };
    // SAFETY: the size is that of the buffer.
    let r = unsafe {
        bpf_get_ns_current_pid_tgid(
            config.ns_dev,
            config.ns_ino,
            &raw mut info,
            size_of::<bpf_pidns_info>() as u32,
        )
    };
    if r == 0 { info.tgid } else { 0 }
}

#[inline(always)]
fn admit(tgid: u32, ns_pid: u32, parent_tgid: u32, flags: u32) -> Option<*mut Proc> {
    let blank = BLANK_PROC.get(0)?;
    let _ = PROCS.insert(tgid, blank, 0);
    let Some(proc) = PROCS.get_ptr_mut(tgid) else {
        lose!(procs);
        return None;
    };
    // SAFETY: points into a map value; the process has not run yet.
    unsafe {
        (*proc).id = next(SEQ_PROC);
        (*proc).tgid = tgid;
        (*proc).ns_pid = ns_pid;
        (*proc).parent_tgid = parent_tgid;
        (*proc).threads = 1;
        (*proc).flags = flags;
        (*proc).born_ns = now_ns();
    }
    Some(proc)
}

#[inline(always)]
fn bury(proc: *mut Proc, flags: u32) {
    // SAFETY: points into a map value.
    let (id, record) = unsafe {
        (*proc).flags |= flags;
        (*proc).gone_ns = now_ns();
        ((*proc).id, &*proc)
    };
    if DEAD_PROCS.insert(id, record, 0).is_err() {
        lose!(graves);
    }
}

pub fn fork(ctx: &RawTracePointContext) {
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    let Some(parent) = PROCS.get_ptr_mut(tgid) else {
        return;
    };
    let Some(config) = CONFIG.get(0) else { return };
    if config.task_pid_offset == 0 {
        lose!(tasks);
        return;
    }
    let child: u64 = ctx.arg(1);
    let at = (child + u64::from(config.task_pid_offset)) as *const [u32; 2];
    // SAFETY: the helper checks the address; `pid` and `tgid` are adjacent.
    let Ok([_, child_tgid]) = (unsafe { bpf_probe_read_kernel(at) }) else {
        lose!(tasks);
        return;
    };
    if child_tgid == tgid {
        // SAFETY: points into a map value.
        unsafe { atomic::add(&raw mut (*parent).threads, 1) }
    } else {
        let _ = admit(child_tgid, 0, tgid, 0);
    }
}

pub fn exec(ctx: &RawTracePointContext) {
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    let Some(config) = CONFIG.get_ptr_mut(0) else {
        return;
    };
    // SAFETY: points into a map value that the supervisor writes only while no root is awaited.
    let (config_ref, root_pid) = unsafe { (&*config, (*config).root_pid) };
    let known = PROCS.get_ptr_mut(tgid);
    if known.is_none() && root_pid == 0 {
        return;
    }
    let ns = ns_pid(config_ref);
    let proc = match known {
        Some(p) => p,
        None => {
            if ns != root_pid {
                return;
            }
            // SAFETY: as above.
            unsafe { (*config).root_pid = 0 }
            let Some(p) = admit(tgid, ns, 0, PROC_ROOT) else {
                return;
            };
            p
        }
    };
    // SAFETY: points into a map value; exec leaves one thread.
    unsafe {
        if (*proc).flags & PROC_EXECED != 0 {
            bury(proc, PROC_REPLACED);
            let (parent, root) = ((*proc).parent_tgid, (*proc).flags & PROC_ROOT);
            if let Some(blank) = BLANK_PROC.get(0) {
                *proc = *blank;
            }
            (*proc).id = next(SEQ_PROC);
            (*proc).tgid = tgid;
            (*proc).parent_tgid = parent;
            (*proc).flags = root;
            (*proc).born_ns = now_ns();
        }
        (*proc).flags |= PROC_EXECED;
        (*proc).ns_pid = ns;
        (*proc).threads = 1;
    }
    // The exec may have come from another thread, which takes over the leader's id.
    let old_pid: i32 = ctx.arg(1);
    let _ = THREADS.remove((u64::from(tgid) << 32) | u64::from(old_pid as u32));
    if let (Some(t), Some(blank)) = (
        THREADS.get_ptr_mut((u64::from(tgid) << 32) | u64::from(tgid)),
        BLANK_THREAD.get(0),
    ) {
        // SAFETY: points into a map value of this thread.
        unsafe { *t = *blank }
    }
    announce(ctx, proc, CONTROL_EXEC, config_ref.stop_at_exec != 0);
}

pub fn exit(ctx: &RawTracePointContext) {
    let pid_tgid = bpf_get_current_pid_tgid();
    let tgid = (pid_tgid >> 32) as u32;
    let Some(proc) = PROCS.get_ptr_mut(tgid) else {
        return;
    };
    let _ = THREADS.remove(pid_tgid);
    let _ = BACKGROUND.remove(pid_tgid);
    // SAFETY: points into a map value.
    if unsafe { atomic::fetch_add(&raw mut (*proc).threads, u64::MAX) } != 1 {
        return;
    }
    // SAFETY: as above.
    unsafe {
        if (*proc).ns_pid == 0
            && let Some(config) = CONFIG.get(0)
        {
            (*proc).ns_pid = ns_pid(config);
        }
    }
    bury(proc, 0);
    announce(ctx, proc, CONTROL_EXIT, false);
    let _ = PROCS.remove(tgid);
}

/// Tells the supervisor, and stops the process when asked to: only when the telling succeeded, or
/// nobody would ever continue it.
#[inline(always)]
fn announce(ctx: &RawTracePointContext, proc: *mut Proc, kind: u32, stop: bool) {
    let Some(mut slot) = CONTROL.reserve::<Control>(0) else {
        lose!(control);
        return;
    };
    // SAFETY: the helper has no preconditions.
    let stopped = stop && unsafe { bpf_send_signal(SIGSTOP) } == 0;
    // SAFETY: points into a map value.
    unsafe {
        slot.write(Control {
            kind,
            tgid: (*proc).tgid,
            ns_pid: (*proc).ns_pid,
            parent_tgid: (*proc).parent_tgid,
            proc_id: (*proc).id,
            t_ns: now_ns(),
            stopped: u32::from(stopped),
            pad: 0,
        });
        debug!(ctx, "control {} of process {}", kind, (*proc).tgid);
    }
    slot.submit(0);
}
