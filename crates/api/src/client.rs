//! The client's side, blocking: the requests of the command `weir` to a running weir.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::http::{Method, Request, StatusCode, header};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use miette::Diagnostic;
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;
use tokio::runtime::Runtime;
use tokio::time::timeout;
use weir_config::reload::Difference;
use weir_config::{
    Defaults, FilterRule, GroupConfig, PortName, SecurityGroup, TemplateName, VifChanges, VifConfig,
};
use weir_limits as limits;
use weir_switch::capture::{CaptureRequest, Seen, seen_in};
use weir_switch::control::{AddressEntry, Extent, Put, VifShown, VifStatus};
use weir_switch::explain::Explanation;
use weir_switch::stats::{ConnectionPage, SwitchStats};
use weir_switch::trace::{FollowRequest, FollowedFrame, Trace};

use crate::problem::Problem;
use crate::routes::{ConfigurationSource, ConfigurationText, Done, Reloaded, Stages};

const TIMEOUT: Duration = Duration::from_secs(limits::CONTROL_TIMEOUT_SECS);
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(limits::UPGRADE_TIMEOUT_SECS);
const RELOAD_TIMEOUT: Duration = Duration::from_secs(limits::RELOAD_TIMEOUT_SECS);

/// The reason why a request has no usable answer.
#[derive(Debug, Error, Diagnostic)]
pub enum ClientError {
    /// No process serves the socket.
    #[error("no weir answers on {}", path.display())]
    NotRunning {
        /// The control socket.
        path: PathBuf,
        /// The remedy.
        #[help]
        help: String,
    },
    /// This user may not open the socket.
    #[error("not allowed to use {}", path.display())]
    #[diagnostic(help(
        "root, the user who runs weir, and members of `group` of [switch] may open it"
    ))]
    NotAllowed {
        /// The control socket.
        path: PathBuf,
    },
    /// The socket failed, or the answer did not come.
    #[error("no answer from weir on {}: {reason}", path.display())]
    #[diagnostic(help("weir may be stopped, or have no processor: ask again; its log says more"))]
    NoAnswer {
        /// The control socket.
        path: PathBuf,
        /// The error.
        reason: String,
    },
    /// The answer is not of this version.
    #[error("weir on {} gave an answer that this version does not know", path.display())]
    #[diagnostic(help("use the same version for the switch and for the command"))]
    UnknownAnswer {
        /// The control socket.
        path: PathBuf,
    },
    /// weir has not done it, and may do it in a moment.
    #[error("{message}")]
    Later {
        /// The reason.
        message: String,
        /// The remedy.
        #[help]
        help: Option<String>,
    },
    /// weir refused.
    #[error("{message}")]
    Refused {
        /// The reason.
        message: String,
        /// The remedy.
        #[help]
        help: Option<String>,
    },
}

impl ClientError {
    /// Nobody serves `path`. The system's weir would serve `system`.
    pub fn not_running(path: &Path, system: &Path) -> Self {
        let help = if path != system && system.exists() {
            let system = system.display();
            format!("is weir running? another one has {system}: sudo, or --control {system}")
        } else {
            "is weir running? start it with `weir run`, or name its socket with --control".into()
        };
        Self::NotRunning { path: path.into(), help }
    }
}

/// A connection to a running weir.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    socket: UnixStream,
    runtime: Runtime,
    sender: SendRequest<Full<Bytes>>,
}

/// The body of a request, and its type.
type Sent = Option<(&'static str, Bytes)>;

fn json(value: &impl Serialize) -> Sent {
    let bytes = serde_json::to_vec(value).expect("a type of weir's, whose keys are text");
    Some(("application/json", bytes.into()))
}

fn toml(text: String) -> Sent {
    Some(("application/toml", text.into()))
}

impl Client {
    /// Connects to the control socket at `path`.
    ///
    /// # Errors
    /// [`ClientError::NotRunning`], [`ClientError::NotAllowed`], [`ClientError::NoAnswer`]
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        let stream = UnixStream::connect(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                ClientError::not_running(path, Path::new(Defaults::SYSTEM_CONTROL))
            }
            io::ErrorKind::PermissionDenied => ClientError::NotAllowed { path: path.into() },
            _ => ClientError::NoAnswer { path: path.into(), reason: error.to_string() },
        })?;
        let no_answer = |error: io::Error| ClientError::NoAnswer {
            path: path.into(),
            reason: error.to_string(),
        };
        let socket = stream.try_clone().map_err(no_answer)?;
        let (runtime, sender) = Self::over(stream).map_err(no_answer)?;
        Ok(Self { path: path.into(), socket, runtime, sender })
    }

    fn over(stream: UnixStream) -> io::Result<(Runtime, SendRequest<Full<Bytes>>)> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        stream.set_nonblocking(true)?;
        let sender = runtime.block_on(async {
            let stream = TokioIo::new(tokio::net::UnixStream::from_std(stream)?);
            let (sender, connection) = handshake(stream).await.map_err(io::Error::other)?;
            // The request reports an error of the connection.
            tokio::spawn(async { drop(connection.await) });
            Ok::<_, io::Error>(sender)
        })?;
        Ok((runtime, sender))
    }

    fn ask<T: DeserializeOwned>(
        &mut self,
        method: Method,
        path: &str,
        sent: Sent,
    ) -> Result<T, ClientError> {
        self.ask_within(method, path, sent, TIMEOUT)
    }

    fn ask_within<T: DeserializeOwned>(
        &mut self,
        method: Method,
        path: &str,
        sent: Sent,
        within: Duration,
    ) -> Result<T, ClientError> {
        let socket = self.path.clone();
        let no_answer = |reason: String| ClientError::NoAnswer { path: socket.clone(), reason };
        let unknown = || ClientError::UnknownAnswer { path: socket.clone() };
        let request = self.request(method, path, sent)?;
        let sender = &mut self.sender;
        let exchange = async {
            sender.ready().await?;
            let (head, body) = sender.send_request(request).await?.into_parts();
            let limited = Limited::new(body, limits::CONTROL_RESPONSE_BYTES_MAX);
            Ok::<_, hyper::Error>((head.status, limited.collect().await))
        };
        let answered = self.runtime.block_on(async { timeout(within, exchange).await });
        let (status, body) = match answered {
            Ok(Ok((status, Ok(body)))) => (status, body.to_bytes()),
            Ok(Ok((_, Err(error)))) => return Err(no_answer(error.to_string())),
            Ok(Err(error)) if error.is_parse() => return Err(unknown()),
            Ok(Err(error)) => return Err(no_answer(reason(&error))),
            Err(_) => return Err(no_answer(format!("none within {} s", within.as_secs()))),
        };
        if status == StatusCode::OK {
            return serde_json::from_slice(&body).map_err(|_| unknown());
        }
        Err(refusal(&body).unwrap_or_else(unknown))
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        sent: Sent,
    ) -> Result<Request<Full<Bytes>>, ClientError> {
        let request = Request::builder().method(method).uri(path).header(header::HOST, "weir");
        let request = match sent {
            Some((kind, body)) => request.header(header::CONTENT_TYPE, kind).body(Full::new(body)),
            None => request.body(Full::default()),
        };
        let path = self.path.clone();
        request.map_err(|error| ClientError::NoAnswer { path, reason: error.to_string() })
    }

    fn get<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, ClientError> {
        match self.ask(Method::GET, path, None) {
            // weir closes a connection on which nothing comes for a while, as on a host without a free processor.
            Err(ClientError::NoAnswer { .. }) if self.sender.is_closed() => {
                *self = Self::connect(&self.path.clone())?;
                self.ask(Method::GET, path, None)
            }
            answered => answered,
        }
    }

    /// Adds an interface.
    ///
    /// # Errors
    /// [`ClientError`], like all methods below.
    pub fn add_vif(&mut self, config: &VifConfig) -> Result<(), ClientError> {
        self.ask(Method::POST, "/v1/vifs", json(config)).map(|_: Done| ())
    }

    /// Makes an interface have these settings, and returns the change that this needed.
    pub fn put_vif(&mut self, config: &VifConfig) -> Result<Put, ClientError> {
        self.ask(Method::PUT, &format!("/v1/vifs/{}", config.name), json(config))
    }

    /// One interface, with each of its settings.
    pub fn vif(&mut self, name: &PortName) -> Result<VifShown, ClientError> {
        self.get(&format!("/v1/vifs/{name}"))
    }

    /// The interface `name` with the keys of a template. It is not added.
    pub fn vif_of_template(
        &mut self,
        template: &TemplateName,
        name: &PortName,
    ) -> Result<VifConfig, ClientError> {
        self.get(&format!("/v1/templates/{template}/vifs/{name}"))
    }

    /// Changes an interface in use, and returns a note about the change.
    pub fn change_vif(
        &mut self,
        name: &PortName,
        changes: &VifChanges,
    ) -> Result<Option<String>, ClientError> {
        let path = format!("/v1/vifs/{name}");
        self.ask(Method::PATCH, &path, json(changes)).map(|done: Done| done.note)
    }

    /// Removes an interface. If it may be missing, returns a note that it was.
    pub fn remove_vif(
        &mut self,
        name: &PortName,
        if_exists: bool,
    ) -> Result<Option<String>, ClientError> {
        let path = format!("/v1/vifs/{name}?if_exists={if_exists}");
        self.ask(Method::DELETE, &path, None).map(|done: Done| done.note)
    }

    /// The interfaces of the switch.
    pub fn vifs(&mut self) -> Result<Vec<VifStatus>, ClientError> {
        let name = |vif: &VifStatus| vif.config.name.to_string();
        self.parts("/v1/vifs", limits::CONTROL_PORTS_MAX, name, |len| {
            len < limits::CONTROL_PORTS_MAX
        })
    }

    /// The stations that the switch knows.
    pub fn addresses(&mut self) -> Result<Vec<AddressEntry>, ClientError> {
        let key = |last: &AddressEntry| format!("{}/{}", last.vlan, last.mac);
        // A port that is removed just now has no name, and its addresses are in no part.
        self.parts("/v1/addresses", limits::CONTROL_ADDRESSES_MAX, key, |len| len == 0)
    }

    /// All of a list that comes in parts.
    fn parts<T: DeserializeOwned>(
        &mut self,
        path: &str,
        limit: usize,
        key: impl Fn(&T) -> String,
        is_last: fn(usize) -> bool,
    ) -> Result<Vec<T>, ClientError> {
        let mut all: Vec<T> = Vec::new();
        loop {
            let last = all.last().map(&key);
            let after = last.as_ref().map(|last| format!("&after={last}")).unwrap_or_default();
            let part: Vec<T> = self.get(&format!("{path}?limit={limit}{after}"))?;
            // An older weir knows no parts: it sends all at once, whatever it is asked for.
            if last.is_some() && part.last().map(&key) == last {
                return Ok(all);
            }
            let ends = is_last(part.len());
            all.extend(part);
            if ends {
                return Ok(all);
            }
        }
    }

    /// Connections of an interface in groups, from the place `from` on.
    pub fn connections(
        &mut self,
        name: &PortName,
        from: u32,
    ) -> Result<ConnectionPage, ClientError> {
        self.get(&format!("/v1/ports/{name}/connections?from={from}"))
    }

    /// Forgets the connections of an interface, of a network's interfaces, or of all; returns a note about it.
    pub fn flush(&mut self, of: Option<&PortName>) -> Result<Option<String>, ClientError> {
        let of = of.map_or_else(String::new, |of| format!("?of={of}"));
        let path = format!("/v1/connections{of}");
        self.ask(Method::DELETE, &path, None).map(|done: Done| done.note)
    }

    /// Replaces the filter rules of an interface or an uplink.
    pub fn set_filter(&mut self, name: &PortName, rules: &[FilterRule]) -> Result<(), ClientError> {
        let path = format!("/v1/ports/{name}/filter");
        self.ask(Method::PUT, &path, json(&rules)).map(|_: Done| ())
    }

    /// Makes a group exist with these rules; returns a note if it was so already.
    pub fn put_group(&mut self, group: &GroupConfig) -> Result<Option<String>, ClientError> {
        let path = format!("/v1/groups/{}", group.name);
        self.ask(Method::PUT, &path, json(group)).map(|done: Done| done.note)
    }

    /// Removes a group. If it may be missing, returns a note that it was.
    pub fn remove_group(
        &mut self,
        name: &SecurityGroup,
        if_exists: bool,
    ) -> Result<Option<String>, ClientError> {
        let path = format!("/v1/groups/{name}?if_exists={if_exists}");
        self.ask(Method::DELETE, &path, None).map(|done: Done| done.note)
    }

    /// The decisions of the policies of the interface or uplink `name`, or the placement of workers.
    pub fn explain(&mut self, name: &PortName) -> Result<Explanation, ClientError> {
        self.get(&format!("/v1/ports/{name}/policies"))
    }

    /// The configuration file with which weir was started, if there was one.
    pub fn config_file(&mut self) -> Result<Option<PathBuf>, ClientError> {
        self.get("/v1/configuration").map(|source: ConfigurationSource| source.path)
    }

    /// The changes that a configuration with this text would make.
    pub fn diff(&mut self, text: String) -> Result<Difference, ClientError> {
        self.ask(Method::POST, "/v1/configuration/difference", toml(text))
    }

    /// The configuration of this text, changed to the running state.
    pub fn saved(&mut self, text: String) -> Result<String, ClientError> {
        let saved = self.ask(Method::POST, "/v1/configuration/saved", toml(text));
        saved.map(|saved: ConfigurationText| saved.text)
    }

    /// Changes the switch to a configuration with this text.
    pub fn reload(&mut self, text: String, extent: Extent) -> Result<Reloaded, ClientError> {
        let path = match extent {
            Extent::Whole => "/v1/configuration",
            Extent::Possible => "/v1/configuration?partly=true",
            Extent::Nothing => "/v1/configuration?unchanged=true",
        };
        self.ask_within(Method::PUT, path, toml(text), RELOAD_TIMEOUT)
    }

    /// Replaces the running weir with the program that is now installed; returns a note about it.
    pub fn upgrade(&mut self) -> Result<Option<String>, ClientError> {
        let done = self.ask_within(Method::POST, "/v1/upgrade", None, UPGRADE_TIMEOUT);
        done.map(|done: Done| done.note)
    }

    /// The way of a frame if `name` sent it.
    pub fn trace(&mut self, name: &PortName, frame: Vec<u8>) -> Result<Trace, ClientError> {
        let sent = Some(("application/octet-stream", frame.into()));
        self.ask(Method::POST, &format!("/v1/ports/{name}/trace"), sent)
    }

    /// Frames as they pass, as pcapng. `each` gets the next bytes, and returns true for more.
    pub fn capture(
        &mut self,
        request: &CaptureRequest,
        each: impl FnMut(&[u8]) -> bool,
    ) -> Result<(), ClientError> {
        self.stream("/v1/captures", json(request), each)
    }

    /// The first frames of a capture that takes `time`; none for a user who may not capture.
    pub fn watch(&mut self, request: &CaptureRequest, time: Duration) -> io::Result<Vec<Seen>> {
        let socket = self.socket()?;
        let end = std::thread::spawn(move || {
            std::thread::sleep(time);
            // The shutdown fails only if the switch has ended. In that case the stream ends, too.
            let _ = socket.shutdown(Shutdown::Both);
        });
        let mut stream = Vec::new();
        // The shutdown comes in the middle of an answer.
        let _ = self.capture(request, |bytes| {
            stream.extend_from_slice(bytes);
            stream.len() < limits::CONTROL_RESPONSE_BYTES_MAX
        });
        let _ = end.join();
        Ok(seen_in(&stream))
    }

    /// The next frames that `name` sends, with the time of each stage.
    pub fn follow(
        &mut self,
        name: &PortName,
        request: &FollowRequest,
        mut each: impl FnMut(FollowedFrame) -> bool,
    ) -> Result<(), ClientError> {
        let path = format!("/v1/ports/{name}/trace/live");
        let (mut rest, mut is_known) = (Vec::new(), true);
        self.stream(&path, json(request), |bytes| {
            rest.extend_from_slice(bytes);
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = rest.drain(..=end).collect();
                let frame = serde_json::from_slice(&line);
                is_known = frame.is_ok();
                if !frame.is_ok_and(&mut each) {
                    return false;
                }
            }
            true
        })?;
        match is_known {
            true => Ok(()),
            false => Err(ClientError::UnknownAnswer { path: self.path.clone() }),
        }
    }

    /// Reads an answer without an end, or with a late one. `each` gets the next bytes, and returns true for more.
    fn stream(
        &mut self,
        path: &str,
        sent: Sent,
        mut each: impl FnMut(&[u8]) -> bool,
    ) -> Result<(), ClientError> {
        let socket = self.path.clone();
        let no_answer = |reason: String| ClientError::NoAnswer { path: socket.clone(), reason };
        let request = self.request(Method::POST, path, sent)?;
        let sender = &mut self.sender;
        self.runtime.block_on(async {
            let failed = |error: hyper::Error| no_answer(reason(&error));
            sender.ready().await.map_err(failed)?;
            let (head, mut body) = sender.send_request(request).await.map_err(failed)?.into_parts();
            if head.status != StatusCode::OK {
                let body = body.collect().await.map_err(failed)?.to_bytes();
                let unknown = || ClientError::UnknownAnswer { path: socket.clone() };
                return Err(refusal(&body).unwrap_or_else(unknown));
            }
            while let Some(frame) = body.frame().await {
                let goes_on = frame.map_err(failed)?.data_ref().is_none_or(|bytes| each(bytes));
                if !goes_on {
                    break;
                }
            }
            Ok(())
        })
    }

    /// The connection's socket: its shutdown ends an answer without an end.
    pub fn socket(&self) -> io::Result<UnixStream> {
        self.socket.try_clone()
    }

    /// The counters of the switch.
    pub fn stats(&mut self) -> Result<SwitchStats, ClientError> {
        self.get("/v1/switch")
    }

    /// Begins or ends the measurement of the costs of a packet's stages.
    pub fn set_stages(&mut self, on: bool) -> Result<(), ClientError> {
        self.ask(Method::PUT, "/v1/stages", json(&Stages { on })).map(|_: Done| ())
    }
}

/// weir's refusal in the body of an answer.
fn refusal(body: &[u8]) -> Option<ClientError> {
    let Problem { status, detail: message, help, .. } = serde_json::from_slice(body).ok()?;
    Some(match status {
        503 => ClientError::Later { message, help },
        _ => ClientError::Refused { message, help },
    })
}

/// An error with its cause.
fn reason(error: &hyper::Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}
