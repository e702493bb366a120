//! Seeds run in threads of their own whose clock leaps and whose randomness is the seed's: `libc.c`, which the test
//! compiles and preloads into itself.

use std::path::PathBuf;
use std::process::Command;

/// Set in a process that has the library.
const MARK: &str = "SLUICE_SIM_CLOCK";

/// Runs the test `name` in a process whose threads can have such a clock; `work` is the test.
pub(crate) fn with_clock(name: &str, work: impl FnOnce()) {
    if std::env::var_os(MARK).is_some() {
        return work();
    }
    let library = compile();
    let mut command = Command::new(std::env::current_exe().expect("the test's own program"));
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]);
    command.env("LD_PRELOAD", &library).env(MARK, "1");
    assert!(command.status().expect("the test starts again").success(), "{name} failed; what it says stands above");
}

fn compile() -> PathBuf {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/simulation_reconcile/libc.c");
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let library = directory.join(format!("simulation-libc-{}.so", std::process::id()));
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut command = Command::new(compiler);
    command.args(["-shared", "-fPIC", "-O2", "-o"]).arg(&library).arg(source);
    assert!(command.status().expect("a C compiler, which Rust links with too").success(), "{source} does not compile");
    library
}

/// Runs `work` in the thread of a seed.
pub(crate) fn in_thread<T: Send + 'static>(seed: u64, work: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::Builder::new().name(format!("seed-{seed}")).spawn(move || {
        fastrand::seed(seed);
        work()
    });
    thread.expect("a thread").join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
