//! Entry point: parse, run, exit with the code that the command decided on.

fn main() -> std::process::ExitCode {
    perf_gate::cli::main()
}
