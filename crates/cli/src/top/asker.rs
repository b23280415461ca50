//! Asks weir in a thread of its own.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use weir_api::{Client, ClientError};
use weir_config::PortName;
use weir_switch::explain::Explanation;
use weir_switch::stats::SwitchStats;

/// What weir says at one moment.
#[derive(Debug, Clone)]
pub(super) struct Look {
    pub(super) stats: SwitchStats,
    /// Of the port that is shown, if one is and has not gone.
    pub(super) explained: Option<Explanation>,
}

/// Asks once. Each time by a new connection: weir closes one that waits.
pub(super) fn look(control: &Path, explain: Option<&PortName>) -> Result<Look, ClientError> {
    let mut client = Client::connect(control)?;
    let stats = client.stats()?;
    let explained = match explain.map(|name| client.explain(name)) {
        None | Some(Err(ClientError::Refused { .. })) => None,
        Some(explained) => Some(explained?),
    };
    Ok(Look { stats, explained })
}

/// The thread. It ends with this.
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
        // The thread is there for as long as this is.
        let _ = self.asks.send(explain);
    }

    /// What has come meanwhile.
    pub(super) fn answer(&self) -> Option<Result<Look, ClientError>> {
        self.answers.try_recv().ok()
    }
}
