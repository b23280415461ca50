//! One line makes a fuzz target, or a program that runs such inputs again.

/// Defines what is done with each input. Under `--cfg fuzzing` libFuzzer makes the inputs. Without it the program reads
/// each file that its command line names: an input that ended a target is looked at that way in a debugger.
#[macro_export]
macro_rules! target {
    (|$input:ident: &[u8]| $body:expr) => {
        #[cfg(fuzzing)]
        libfuzzer_sys::fuzz_target!(|$input: &[u8]| $body);

        #[cfg(not(fuzzing))]
        fn main() -> std::io::Result<()> {
            let run = |$input: &[u8]| $body;
            for path in std::env::args_os().skip(1) {
                run(&std::fs::read(path)?);
            }
            Ok(())
        }
    };
}
