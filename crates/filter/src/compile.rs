//! Who compiles. libpcap is C, and takes minutes for some expressions of a few hundred bytes: a program that serves
//! others has another process compile ([`compile_by`]). A program that runs by its caller's rights compiles itself.

use std::sync::OnceLock;

use pcap::{Capture, Linktype};

use crate::instruction::Instruction;
use crate::program::CompileError;

/// Bytes of a packet that libpcap's programs say to keep where they match.
pub(crate) const CAPTURED_LEN_MAX: u32 = 65_535;

/// Compiles for a process that does not do so itself.
pub trait Compiler: Send + Sync {
    /// What libpcap makes of `expression`.
    ///
    /// # Errors
    /// [`CompileError`]
    fn instructions(&self, expression: &str) -> Result<Vec<Instruction>, CompileError>;
}

/// Whoever compiles for this process. Once there is one, this process compiles nothing itself.
static COMPILER: OnceLock<Box<dyn Compiler>> = OnceLock::new();

/// Has `compiler` compile all expressions of this process from now on. `false` if another one does already.
pub fn compile_by(compiler: impl Compiler + 'static) -> bool {
    COMPILER.set(Box::new(compiler)).is_ok()
}

pub(crate) fn instructions(expression: &str) -> Result<Vec<Instruction>, CompileError> {
    match COMPILER.get() {
        Some(compiler) => compiler.instructions(expression),
        None => compile_here(expression),
    }
}

/// Compiles in this process, for as long as libpcap takes. Host names are looked up now.
///
/// # Errors
/// [`CompileError`], with libpcap's own words where it has some.
pub fn compile_here(expression: &str) -> Result<Vec<Instruction>, CompileError> {
    let refused = |error: pcap::Error| {
        CompileError::Expression(match error {
            pcap::Error::PcapError(words) => words,
            other => other.to_string(),
        })
    };
    let capture = Capture::dead(Linktype::ETHERNET).map_err(refused)?;
    let compiled = capture.compile(expression, true).map_err(refused)?;
    // Its text is all that the crate shows of an instruction.
    let shown = compiled.get_instructions().iter().map(ToString::to_string);
    let instructions: Option<Vec<_>> = shown.map(|text| Instruction::read(&text)).collect();
    instructions.ok_or_else(|| CompileError::Expression("its program cannot be read".into()))
}
