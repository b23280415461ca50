//! Requests to weir, in a thread of their own.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use weir_api::{Client, ClientError};
use weir_config::PortName;
use weir_switch::explain::Explanation;
use weir_switch::stats::SwitchStats;

/// weir's answers at one moment.
#[derive(Debug, Clone)]
pub(super) struct Look {
    pub(super) stats: SwitchStats,
    /// The explanation of the shown port, if a port is shown and still exists.
    pub(super) explained: Option<Explanation>,
}

/// Asks once. Each call makes a new connection, because weir would close an idle one.
pub(super) fn look(control: &Path, explain: Option<&PortName>) -> Result<Look, ClientError> {
    let mut client = Client::connect(control)?;
    let stats = client.stats()?;
    let explained = match explain.map(|name| client.explain(name)) {
        None | Some(Err(ClientError::Refused { .. })) => None,
        Some(explained) => Some(explained?),
    };
    Ok(Look { stats, explained })
}

/// The asking thread. It ends when this is dropped.
pub(super) struct Asker {
    asks: Sender<Option<PortName>>,
    answers: Receiver<Result<Look, ClientError>>,
}

impl Asker {
    pub(super) fn start(control: &Path) -> io::Result<Self> {
        let control = PathBuf::from(control);
        let (asks, to_ask) = mpsc::channel::<Option<PortName>>();
        let (answered, answers) = mpsc::channel();
        thread::Builder::new().name("weir-top-asks".into()).spawn(move || {
            for explain in to_ask {
                if answered.send(look(&control, explain.as_ref())).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { asks, answers })
    }

    pub(super) fn ask(&self, explain: Option<PortName>) {
        // The thread runs as long as this exists.
        let _ = self.asks.send(explain);
    }

    /// The answer, if one has arrived.
    pub(super) fn answer(&self) -> Option<Result<Look, ClientError>> {
        self.answers.try_recv().ok()
    }
}
