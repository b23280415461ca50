//! `weir capture`: frames of the running switch, to a file, a pipe, or as lines.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use weir_api::{Client, ClientError};
use weir_config::Defaults;
use weir_foreign::place;

use super::CommandError;
use crate::args::CaptureArgs;
use crate::captured::{Captured, Form};

/// `weir capture`; `out` is for lines. Ends with the stream, or on SIGINT and SIGTERM.
///
/// # Errors
/// [`CommandError::Client`] if the switch refuses, [`CommandError::Output`] if the frames cannot be written.
pub fn capture(
    args: &CaptureArgs,
    defaults: &Defaults,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let standard = Path::new("-");
    let mut file: Box<dyn Write>;
    let form = match args.write.as_deref() {
        None => Form::Lines(out),
        Some(path) if path == standard && io::stdout().is_terminal() => {
            return Err(CommandError::Terminal);
        }
        Some(path) => {
            file = match path == standard {
                true => Box::new(io::stdout()),
                false => Box::new(Later { path: path.to_owned(), file: None }),
            };
            Form::Pcapng(&mut *file)
        }
    };
    let mut client = Client::connect(defaults.control.as_path())?;
    let ended = end_on_signals(client.socket()?)?;
    let mut captured = Captured::new(form);
    let mut written = Ok(());
    let streamed = client.capture(&args.request(), |bytes| {
        written = captured.take(bytes);
        written.is_ok()
    });
    written?;
    match streamed {
        // The signal ended the connection in the middle of an answer.
        Err(ClientError::NoAnswer { .. }) if ended.load(Ordering::SeqCst) => {}
        streamed => streamed?,
    }
    eprintln!("{}", captured.summary());
    Ok(())
}

/// A file that is created with its first bytes, so that a refused capture does not touch an existing file.
struct Later {
    path: PathBuf,
    file: Option<File>,
}

impl Write for Later {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let named = |error: io::Error| {
            io::Error::new(error.kind(), format!("{}: {error}", self.path.display()))
        };
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(place::create(&self.path).map_err(|error| {
                let error = named(error);
                let help = "name a file in a directory that is there and that this user may write";
                io::Error::new(error.kind(), format!("{error}: {help}"))
            })?),
        };
        file.write(bytes).map_err(named)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Ends the connection on a signal. The file then has the whole blocks received so far.
pub(super) fn end_on_signals(socket: UnixStream) -> io::Result<Arc<AtomicBool>> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let ended = Arc::new(AtomicBool::new(false));
    let end = Arc::clone(&ended);
    thread::Builder::new().name("weir-signals".into()).spawn(move || {
        for _ in signals.forever() {
            end.store(true, Ordering::SeqCst);
            // This fails only if the switch has ended, which also ends the stream.
            let _ = socket.shutdown(Shutdown::Both);
        }
    })?;
    Ok(ended)
}
