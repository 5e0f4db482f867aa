//! NVRTC, as the tests have it.

use std::io::Write;

use selective_scan::cuda::nvrtc::Compiler;

/// The version that bin/kernels-test has put where it is looked for, as "13.0": then the tests do not do without.
const EXPECTED: &str = "EXPHIL_TEST_NVRTC";

/// NVRTC, or none, said aloud, where it is not there and not expected either.
pub fn compiler() -> Option<Compiler> {
    let compiler = match Compiler::find() {
        Ok(compiler) => compiler,
        Err(error) => return skip(&error.to_string()),
    };
    let (major, minor) = compiler.version();
    let found = format!("{major}.{minor}");
    assert!(std::env::var_os(EXPECTED).is_none_or(|expected| expected == *found), "NVRTC is {found}");
    Some(compiler)
}

/// NVRTC of this very version.
pub fn compiler_of(version: (i32, i32)) -> Option<Compiler> {
    let compiler = compiler()?;
    match compiler.version() {
        found if found == version => Some(compiler),
        found => skip(&format!("it is {found:?}, and {version:?} is wanted")),
    }
}

fn skip<T>(reason: &str) -> Option<T> {
    assert!(std::env::var_os(EXPECTED).is_none(), "{reason}");
    // Past the harness, which keeps to itself what a test prints that passes.
    let words = format!("SKIPPED: a test that compiles kernels by NVRTC: {reason}\n");
    std::io::stderr().write_all(words.as_bytes()).expect("there is a standard error");
    None
}
