//! Seeds run in threads of their own whose clock leaps and whose randomness is the seed's: `libc.c`, which the test
//! compiles and preloads into itself.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

/// What the clock of each seed begins with, as in `libc.c`: 2026-01-01T00:00:00Z.
const BEGIN: u64 = 1_767_225_600;
/// Set in a process that has the library.
const MARK: &str = "SLUICE_SIM_CLOCK";

/// Runs the test `name` in a process whose threads can have such a clock; `work` is the test.
pub(crate) fn with_clock(name: &str, work: impl FnOnce()) {
    if std::env::var_os(MARK).is_some() {
        return work();
    }
    let mut command = Command::new(std::env::current_exe().expect("the test's own program"));
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]);
    command.env("LD_PRELOAD", library()).env(MARK, "1");
    assert!(command.status().expect("the test starts again").success(), "{name} failed; what it says stands above");
}

/// The compiled library: of this process alone, and made once, so that no test loads what another still writes.
fn library() -> &'static PathBuf {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(compile)
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

/// Without the library a seed would wait in real time, for days.
#[expect(clippy::disallowed_methods, reason = "it is this clock that is asked whether it is the simulated one")]
fn assert_that_clock_leaps() {
    let simulated = SystemTime::UNIX_EPOCH + Duration::from_secs(BEGIN);
    assert_eq!(
        SystemTime::now(),
        simulated,
        "the library that simulates the clock was not loaded: see the linker's error above"
    );
}

/// Runs `work` in the thread of a seed.
pub(crate) fn in_thread<T: Send + 'static>(seed: u64, work: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::Builder::new().name(format!("seed-{seed}")).spawn(move || {
        assert_that_clock_leaps();
        fastrand::seed(seed);
        work()
    });
    thread.expect("a thread").join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
