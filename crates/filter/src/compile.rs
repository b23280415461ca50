//! The choice of the compiling process. libpcap is C, and takes minutes for some expressions of a few hundred bytes: a
//! program that serves others lets another process compile ([`compile_by`]). A program with its caller's rights
//! compiles itself.

use std::sync::OnceLock;

use pcap::{Capture, Linktype};

use crate::instruction::Instruction;
use crate::program::CompileError;

/// The number of bytes that libpcap's programs return for a packet that matches.
pub(crate) const CAPTURED_LEN_MAX: u32 = 65_535;

/// Compiles for a process that does not compile itself.
pub trait Compiler: Send + Sync {
    /// libpcap's instructions for `expression`.
    ///
    /// # Errors
    /// [`CompileError`]
    fn instructions(&self, expression: &str) -> Result<Vec<Instruction>, CompileError>;
}

/// The compiler of this process. Once it is set, this process compiles nothing itself.
static COMPILER: OnceLock<Box<dyn Compiler>> = OnceLock::new();

/// Lets `compiler` compile all expressions of this process from now on. `false` if a compiler is set already.
pub fn compile_by(compiler: impl Compiler + 'static) -> bool {
    COMPILER.set(Box::new(compiler)).is_ok()
}

pub(crate) fn instructions(expression: &str) -> Result<Vec<Instruction>, CompileError> {
    match COMPILER.get() {
        Some(compiler) => compiler.instructions(expression),
        None => compile_here(expression),
    }
}

/// Compiles in this process, for as long as libpcap takes. Host names are resolved now.
///
/// # Errors
/// [`CompileError`], with libpcap's own message if it has one.
pub fn compile_here(expression: &str) -> Result<Vec<Instruction>, CompileError> {
    let refused = |error: pcap::Error| {
        CompileError::Expression(match error {
            pcap::Error::PcapError(words) => words,
            other => other.to_string(),
        })
    };
    let capture = Capture::dead(Linktype::ETHERNET).map_err(refused)?;
    let compiled = capture.compile(expression, true).map_err(refused)?;
    // The crate shows an instruction only as text.
    let shown = compiled.get_instructions().iter().map(ToString::to_string);
    let instructions: Option<Vec<_>> = shown.map(|text| Instruction::read(&text)).collect();
    instructions.ok_or_else(|| CompileError::Expression("its program cannot be read".into()))
}
