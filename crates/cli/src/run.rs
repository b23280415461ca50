//! `weir run`: a switch in the foreground, until a signal ends it.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use miette::Diagnostic;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use thiserror::Error;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;
use weir_api::{ApiServer, Client, Serving, ServingError};
use weir_config::descriptors;
use weir_config::{Config, ConfigError, Defaults, LatencyBudget, PortName, SocketPath, VifConfig};
use weir_engine::Options;
use weir_switch::compiler::Compiler;
use weir_switch::control::ControlHandler;
use weir_switch::host::{self, Lack};
use weir_switch::programs::Programs;
use weir_switch::sandbox::{self, ConfineError, Needs};
use weir_switch::unix_socket::{self, ListenError};
use weir_switch::upgrade::{Beside, Starter};
use weir_switch::watchdog::{Service, Watchdog};
use weir_switch::{Devices, Keeping, Meeting, Switch, SwitchError, UplinkDevice};
use weir_text::plain::{Obeyed, Plain};

use crate::args::RunArgs;
use crate::ending::{self, Asked, Asks, Left};
use crate::vhost_user_net::{BackendArgs, BackendSocket, BackendSocketError};

/// The environment variable that selects the log's messages.
const LOG_VARIABLE: &str = "WEIR_LOG";

/// Longest time for which a weir that was killed holds its sockets, on a busy machine.
const LAST_MOMENTS: Duration = Duration::from_secs(2);
/// The time for which a replaced weir stays, so that the answer to `weir upgrade` is sent.
const ANSWER_GOES_OUT: Duration = Duration::from_millis(100);

/// The reason why `weir run` ended or did not start.
#[derive(Debug, Error, Diagnostic)]
pub enum RunError {
    /// The configuration cannot be used.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Config(#[from] ConfigError),
    /// The switch cannot be started.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Switch(#[from] SwitchError),
    /// The control socket cannot be opened.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Control(#[from] ListenError),
    /// Another process serves this switch.
    #[error("weir {version} runs already, and answers on {control}")]
    #[diagnostic(help(
        "`weir status` shows how it is, `weir reload` applies a changed file, `weir upgrade` puts another program in its place; a second switch needs another `control`"
    ))]
    Runs {
        /// The running weir's version.
        version: String,
        /// The control socket.
        control: SocketPath,
    },
    /// The API cannot be served as configured.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Serving(#[from] ServingError),
    /// The back-end program's socket cannot be opened.
    #[error(transparent)]
    #[diagnostic(transparent)]
    BackendSocket(#[from] BackendSocketError),
    /// The process cannot be confined.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Confine(#[from] ConfineError),
    /// The socket cannot be duplicated.
    #[error("cannot duplicate the socket")]
    Socket(#[source] io::Error),
    /// The watchdog cannot be started.
    #[error("cannot start the watchdog")]
    Watchdog(#[source] io::Error),
    /// The process that starts the next weir cannot be started.
    #[error("cannot start the process that starts the next weir")]
    Starter(#[source] io::Error),
    /// The process that runs programs for ports cannot be started.
    #[error("cannot start the process that runs programs for ports")]
    Programs(#[source] io::Error),
    /// There is no weir to replace.
    #[error("no weir is at the other end of standard input")]
    #[diagnostic(help("`weir upgrade` has the running weir start the new one"))]
    TakeOver(#[source] io::Error),
    /// The process that compiles expressions cannot be started.
    #[error("cannot start the process that compiles filter expressions")]
    Compiler(#[source] io::Error),
    /// Signals cannot be caught.
    #[error("cannot wait for signals")]
    Signals(#[source] io::Error),
}

/// Logs to standard error; `WEIR_LOG` selects the messages (`WEIR_LOG=debug`, `WEIR_LOG=weir_port_vhost=debug`).
pub fn log_to_stderr() {
    let asked = std::env::var_os(LOG_VARIABLE).unwrap_or_default();
    let (filter, wrong) = log_filter(&asked.to_string_lossy());
    let colours = io::stderr().is_terminal();
    let writer = move || Plain::new(io::stderr(), Obeyed::Record { colours });
    let lines = tracing_subscriber::fmt::layer().with_writer(writer);
    let lines = lines.with_ansi(colours).with_target(false);
    // Installing the log fails only if there is a log already, which then serves the purpose.
    let _ = tracing_subscriber::registry().with(lines).with(filter).try_init();
    if let Some(wrong) = wrong {
        tracing::warn!("{wrong}");
    }
}

/// The filter for the text of [`LOG_VARIABLE`]. An empty text and a wrong one select info; a wrong
/// one is returned as well.
fn log_filter(text: &str) -> (Targets, Option<String>) {
    let mut filter = Targets::new();
    let words: Vec<_> = text.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
    for word in &words {
        // The library would read a word that is no level as the name of a module, and a filter for one module drops
        // all other messages.
        let (module, level) = match word.split_once('=') {
            Some((module, "")) => (Some(module), None),
            Some((module, level)) => (Some(module), level.parse().ok()),
            None if word.starts_with("weir") => (Some(*word), Some(LevelFilter::TRACE)),
            None => (None, word.parse().ok()),
        };
        filter = match (module, level) {
            (Some(module), Some(level)) if !module.is_empty() && !module.contains('[') => {
                filter.with_target(module, level)
            }
            (None, Some(level)) => filter.with_default(level),
            _ => {
                let levels = "error, warn, info, debug, trace, off, or weir_CRATE=LEVEL";
                let said =
                    format!("{LOG_VARIABLE}: `{word}` is no level: {levels}; weir logs at info");
                return (Targets::new().with_default(LevelFilter::INFO), Some(said));
            }
        };
    }
    if words.is_empty() {
        filter = filter.with_default(LevelFilter::INFO);
    }
    (filter, None)
}

/// Runs the switch of a configuration file.
pub fn run(args: &RunArgs, defaults: &Defaults) -> Result<(), RunError> {
    let beside = args.take_over.then(Beside::of_this_process).transpose();
    let beside = beside.map_err(RunError::TakeOver)?;
    let ended = run_beside(args, defaults, beside.as_ref());
    if let (Some(beside), Err(error)) = (&beside, &ended) {
        let (details, help) = match error {
            RunError::Config(error) if !error.problems().is_empty() => {
                let help = format!("`weir check {}` shows each in its place", args.file.display());
                (error.lines(), Some(help))
            }
            _ => (Vec::new(), None),
        };
        beside.refuse(error, &details, help);
    }
    ended
}

/// Runs the switch, in place of another weir if there is one.
fn run_beside(
    args: &RunArgs,
    defaults: &Defaults,
    beside: Option<&Beside>,
) -> Result<(), RunError> {
    let defaults = &Defaults { keeper: args.keeper.clone(), ..defaults.clone() };
    let mode = args.sandbox.mode();
    // The compiler serves all expressions of this process, including those of its file.
    let compiler = Compiler::serve_this_process(mode).map_err(RunError::Compiler)?;
    let config = Config::load(&args.file, defaults)?;
    if beside.is_none() {
        runs_alone(&config.switch.control)?;
    }
    log_to_stderr();
    raise_descriptor_limit();
    descriptors::reserve(&config);
    if let Some(note) = descriptors::Carried::of(&config).note() {
        tracing::warn!("{note}");
    }
    let waits = EndsAtOnce::begin()?;
    let signals = catch_signals(&[SIGINT, SIGTERM, SIGHUP, SIGUSR2])?;
    let file = std::path::absolute(&args.file).unwrap_or_else(|_| args.file.clone());
    let serving = Serving::of(&config.switch.api, beside.is_some())?;
    let needs = Needs::of(&config).with_file(&file).with_group(serving.group());
    let needs = needs.beside(beside.is_some());
    let service = Service::of_this_process();
    let starter = config.switch.keeper.is_some().then(Starter::start).transpose();
    let starter = starter.map_err(RunError::Starter)?;
    let programs = Programs::start(&config).map_err(RunError::Programs)?;
    let hands = sandbox::start_helper(mode, &needs)?;
    let keeping = match beside {
        Some(_) => Keeping::look(&config, &hands)?,
        None => Keeping::take(&config, &hands)?,
    };
    drop(waits);
    let devices = Devices::open(&config, &keeping)?;
    for Lack { what, help } in host::lacks(&config) {
        tracing::warn!(help, "the host lacks what a network or an uplink takes: {what}");
    }
    sandbox::confine(mode, &needs)?;
    let control = Some(config.switch.control.clone());
    let left = Left { hands: hands.clone(), control, compiler: Some(compiler) };
    let gone = signals.handle();
    let asks = Asks::start(signals, left).map_err(RunError::Signals)?;
    let own = hands.clone();
    let switch = match beside {
        Some(old) => Switch::start_beside(&config, devices, own, keeping, || old.prepared())?,
        None => Switch::start_with(&config, devices, own, keeping)?,
    };
    switch.started_from(&file, defaults);
    if let Some(programs) = programs {
        switch.runs(programs).map_err(RunError::Programs)?;
    }
    if let Some(starter) = starter {
        let service = service.clone();
        switch.upgrades_by(starter, move |process| {
            service.goes_on_as(process);
            gone.close();
        });
    }
    let handler = Arc::clone(&switch) as Arc<dyn ControlHandler>;
    let path = config.switch.control.as_path();
    let control = match ApiServer::start_with(path, handler, &hands, serving) {
        Ok(control) => control,
        Err(error) => {
            switch.leave_for_good();
            return Err(error.into());
        }
    };
    tracing::info!(
        control = %config.switch.control,
        vifs = config.vifs.len(),
        uplinks = config.uplinks.len(),
        "ready"
    );
    if let Some(old) = beside {
        old.serves();
    }
    let watchdog = Watchdog::start(service.clone(), notes_of(&switch));
    let watchdog = watchdog.map_err(RunError::Watchdog)?;
    service.is_ready();
    // The switch has its own copies of what it needs.
    drop((config, needs));
    weir_switch::give_back_start();
    let end = loop {
        match asks.next() {
            Some(Asked::Reload) => {
                service.is_reloading();
                switch.reload_file();
                service.is_ready();
            }
            Some(Asked::Leave) => match switch.may_leave() {
                Ok(()) => break Some(Asked::Leave),
                Err(why) => tracing::error!(why, "not left to the next weir: this one goes on"),
            },
            end => break end,
        }
    };
    let Some(end) = end else {
        // The pause lets the answer to the upgrade request be sent.
        std::thread::sleep(ANSWER_GOES_OUT);
        std::process::exit(0);
    };
    service.is_stopping();
    if end == Asked::Leave {
        ending::leaves_in_time().map_err(RunError::Signals)?;
    }
    drop(watchdog);
    drop(control);
    if end == Asked::Leave {
        if switch.leave() {
            tracing::info!("front ends, rings and TAPs are left to the next weir");
            std::process::exit(0);
        }
        tracing::warn!("there is no keeper to leave anything with: front ends are disconnected");
    }
    let last = switch.ends_ports();
    let unsaved = switch.unsaved();
    match (unsaved.is_empty(), switch.is_kept()) {
        (true, _) => {}
        (false, true) => {
            tracing::info!(
                unsaved = unsaved.join(", "),
                "lies with the keeper, and not in the file"
            );
        }
        (false, false) => {
            tracing::warn!(
                unsaved = unsaved.join(", "),
                "ends with weir: the file does not say so"
            );
        }
    }
    drop(switch);
    drop(last);
    Ok(())
}

/// Refuses to start if a weir serves the control socket, before this process opens anything that belongs to that
/// weir. A weir that is being killed may hold its socket a moment longer than it answers.
///
/// # Errors
/// [`RunError::Runs`], or [`RunError::Control`] if another program serves the socket.
fn runs_alone(control: &SocketPath) -> Result<(), RunError> {
    let path = control.as_path();
    let end = Instant::now() + LAST_MOMENTS;
    // An error here appears again when the socket is made.
    while unix_socket::is_served(path).unwrap_or(false) {
        match Client::connect(path).and_then(|mut client| client.stats()) {
            Ok(stats) => {
                let control = control.clone();
                return Err(RunError::Runs { version: stats.version, control });
            }
            Err(_) if Instant::now() < end => std::thread::sleep(LAST_MOMENTS / 100),
            Err(_) => return Err(ListenError::in_use(path).into()),
        }
    }
    Ok(())
}

/// Makes the switch note its state for the next weir, if there was traffic.
fn notes_of(switch: &Arc<Switch>) -> impl FnMut() + Send + 'static {
    let (switch, mut seen) = (Arc::downgrade(switch), 0);
    move || {
        if let Some(switch) = switch.upgrade() {
            switch.log_refusals();
            let wakeups = switch.engine().wakeups();
            if std::mem::replace(&mut seen, wakeups) != wakeups {
                switch.note();
            }
        }
    }
}

/// Runs `weir-vhost-user-net`: one guest and one TAP interface, until SIGTERM, or until the front end disconnects if
/// no other one can connect.
pub fn run_backend(args: &BackendArgs) -> Result<(), RunError> {
    // This switch has one interface of each kind, so nobody refers to them by name.
    let name = |text: &str| text.parse::<PortName>().expect("a constant that is a valid name");
    log_to_stderr();
    let signals = catch_signals(&[SIGINT, SIGTERM])?;
    let (mode, needs) = (args.sandbox.mode(), Needs::of_socket(args.socket_path.as_ref()));
    let hands = sandbox::start_helper(mode, &needs)?;
    let socket = args.open_socket(&hands)?;
    let uplink = args.uplink(name("host"));
    let device = UplinkDevice::open(&uplink, &Keeping::default())?;
    sandbox::confine(mode, &needs)?;
    let nowhere: SocketPath = "/".parse().expect("a constant that is a valid path");
    let end = signals.handle();
    let left = Left { hands: hands.clone(), control: None, compiler: None };
    let asks = Asks::start(signals, left).map_err(RunError::Signals)?;
    let switch = Switch::empty_with(
        Options { workers: 1, ..Options::default() },
        LatencyBudget::DEFAULT,
        nowhere.clone(),
        hands,
    )?;
    switch.plug_in(&uplink, device)?;
    let mut vif = VifConfig::new(name("guest"), nowhere);
    vif.queues = args.queues;
    // Every frame of the guest reaches the TAP, as with any TAP back end.
    vif.mac_check = false;
    let _bound = match socket {
        BackendSocket::Listening(bound) => {
            let listener = bound.listener().try_clone().map_err(RunError::Socket)?;
            switch.add_vif(vif, Meeting::Listener(listener.release()))?;
            Some(bound)
        }
        BackendSocket::ListeningFd(listener) => {
            switch.add_vif(vif, Meeting::Listener(listener))?;
            None
        }
        BackendSocket::Connected(stream) => {
            let watched = stream.try_clone().map_err(RunError::Socket)?;
            switch.add_vif(vif, Meeting::Connected(stream))?;
            std::thread::spawn(move || {
                let mut fds = [PollFd::new(&watched, PollFlags::RDHUP)];
                while poll(&mut fds, None) == Err(rustix::io::Errno::INTR) {}
                end.close();
            });
            None
        }
    };
    if asks.next().is_none() {
        tracing::info!("stopping: the front end is gone");
    }
    Ok(())
}

/// Raises the limit of descriptors. A port with eight queues has some fifty of them. The soft limit is usually 1,024,
/// and the hard limit far more.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = descriptors::limit_of_run();
    if limit.current.is_some_and(|current| current < raised) {
        let raised = Rlimit { current: Some(raised), ..limit };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::warn!(%error, "cannot raise the limit of descriptors");
        }
    }
}

/// As long as the value exists, a signal ends this process at once. The process serves nobody yet, and may wait for a
/// keeper.
struct EndsAtOnce(Arc<AtomicBool>);

impl EndsAtOnce {
    fn begin() -> Result<Self, RunError> {
        let waits = Arc::new(AtomicBool::new(true));
        for signal in [SIGINT, SIGTERM] {
            let ends = flag::register_conditional_shutdown(signal, 0, Arc::clone(&waits));
            ends.map_err(RunError::Signals)?;
        }
        Ok(Self(waits))
    }
}

impl Drop for EndsAtOnce {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// Catches these signals, which [`Asks`] receives from now on.
fn catch_signals(signals: &[i32]) -> Result<Signals, RunError> {
    Signals::new(signals).map_err(RunError::Signals)
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::{Layer, Registry};

    use super::*;

    #[test]
    fn a_wrong_word_for_the_log_is_named_and_turns_nothing_off() {
        let most = |filter: &Targets| Layer::<Registry>::max_level_hint(filter);
        let wrong =
            ["verbose", "debug,verbose", "weir_api=loud", "=", "info, debg", "[span]=trace"];
        for wrong in wrong {
            let (filter, said) = log_filter(wrong);
            assert_eq!(most(&filter), Some(LevelFilter::INFO), "{wrong}");
            let said = said.unwrap_or_default();
            assert!(said.contains("is no level: error, warn, info"), "{wrong}: {said}");
        }
        for (good, level) in [
            ("", LevelFilter::INFO),
            ("DEBUG", LevelFilter::DEBUG),
            ("off", LevelFilter::OFF),
            ("weir_api", LevelFilter::TRACE),
            ("warn,weir_port_vhost=debug", LevelFilter::DEBUG),
        ] {
            let (filter, said) = log_filter(good);
            assert_eq!((most(&filter), said), (Some(level), None), "{good}");
        }
    }
}
