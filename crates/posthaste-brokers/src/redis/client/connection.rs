//! One connection: name, TCP, TLS, login, and the first answers.
//!
//! Everything that can be wrong with a connection is known before the first event: the files, the
//! certificate, the password, a server that is still loading, a replica where a master is wanted. Files are
//! read anew each time, so that a rotated certificate or password is used at the next connection.

use super::life::{Life, WatchedStream};
use super::topology::Login;
use super::{ErrorReply, config_failure};
use crate::address::Address;
use crate::dial::tls_error;
use crate::redis::RedisConfig;
use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Cmd, Pipeline, RedisConnectionInfo, RedisError, Value};
use posthaste::sink::Failure;
use posthaste::task::{Task, spawn};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

/// The time for name, TCP, TLS and login together. With the longest pause between two tries we are back 5 s
/// after an outage.
const DIAL_TIMEOUT: Duration = Duration::from_secs(3);
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);
/// Room for requests that are no events: pings, questions of a diagnosis, those of the fence.
const OTHER_REQUESTS: usize = 64;
/// Bytes that are collected before they are written.
const WRITE_BYTES: usize = 64 << 10;

/// The sending end of a connection. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Connection {
    client: MultiplexedConnection,
    pub(super) life: Arc<Life>,
}

/// The task that carries a connection. When it ends, or is dropped, the connection is over.
pub(super) type Driver = Task<()>;

impl Connection {
    /// A reply for each command. Errors of the server are among them. Dropping this shifts nobody's replies,
    /// because those to a request that has left are read and thrown away.
    pub(super) async fn ask(&self, commands: &Pipeline) -> Result<Vec<Value>, RedisError> {
        // With `query_async` one error of the server would hide the other replies.
        self.client.clone().send_packed_commands(commands, 0, commands.len()).await
    }

    /// The same for one command.
    pub(super) async fn ask_one(&self, command: &Cmd) -> Result<Value, RedisError> {
        self.client.clone().send_packed_command(command).await
    }
}

/// What may be at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    Master,
    /// A server of any kind, or a sentinel.
    Anybody,
}

/// Opens a connection, or says why there is none.
pub(super) async fn open(
    config: &RedisConfig,
    address: &Address,
    login: Login,
    name: &str,
    wanted: Wanted,
) -> Result<(Connection, Driver), Failure> {
    let dialled = async {
        let (connection, driver) = connect(config, address).await?;
        log_in(&connection, address, &login, name, wanted).await?;
        Ok((connection, driver))
    };
    timeout(DIAL_TIMEOUT, dialled).await.unwrap_or_else(|_| Err(unreachable(address, "no answer in time")))
}

pub(super) fn unreachable(address: &Address, why: impl std::fmt::Display) -> Failure {
    Failure::of_sink("redis.unreachable", format!("{address}: {why}"))
}

async fn connect(config: &RedisConfig, address: &Address) -> Result<(Connection, Driver), Failure> {
    let tcp = crate::dial::to_host(&address.host, address.port).await;
    let tcp = tcp.map_err(|error| unreachable(address, error))?;
    if !address.tls {
        return over(tcp, config, address).await;
    }
    let client = config.options.tls().client_config().map_err(|error| config_failure(&error))?;
    let refused = |why: String| Failure::of_sink("redis.tls", format!("{address}: no TLS connection: {why}"));
    let server = ServerName::try_from(address.host.clone()).map_err(|error| refused(error.to_string()))?;
    let handshake = async {
        let mut stream = TlsConnector::from(Arc::new(client)).connect(server, tcp).await?;
        greet(&mut stream).await?;
        Ok::<_, io::Error>(stream)
    };
    // A server without TLS takes the handshake for the beginning of a command, and waits for the rest of it.
    let stream = timeout(HANDSHAKE_TIMEOUT, handshake).await;
    let stream =
        stream.map_err(|_| refused("no answer; does the server speak TLS on this port?".to_owned()))?;
    let stream = stream
        .map_err(|error| refused(tls_error(&error).map_or_else(|| error.to_string(), ToString::to_string)))?;
    over(stream, config, address).await
}

/// Sends a first question and waits for its answer. With TLS 1.3 a server judges our certificate when the
/// handshake is over for us, and says so in an alert. Somebody must read that alert, and redis-rs would stop
/// at the write that fails before it.
async fn greet(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> io::Result<()> {
    let written = stream.write_all(b"PING\r\n").await;
    let mut answer = BufReader::with_capacity(1, stream);
    let read = answer.read_until(b'\n', &mut Vec::new()).await?;
    written?;
    // The login asks again, so the answer itself is not read.
    if read == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
}

/// The client over a stream. We log in and limit the time ourselves, because the client would hide which step
/// failed.
async fn over<S>(stream: S, config: &RedisConfig, address: &Address) -> Result<(Connection, Driver), Failure>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let info = RedisConnectionInfo::default().set_skip_set_lib_name();
    let options = AsyncConnectionConfig::new()
        .set_response_timeout(None)
        // The window and the backlog bound what is unanswered. So handing a request over never waits, and no
        // request leaves much later than its call believes. The client's own limit would count the same once
        // more.
        .set_pipeline_buffer_size(config.options.max_in_flight + OTHER_REQUESTS)
        .set_write_backpressure_boundary(WRITE_BYTES);
    let life = Life::new();
    let stream = WatchedStream { stream, life: Arc::clone(&life) };
    let made = MultiplexedConnection::new_with_config(&info, stream, options).await;
    let (client, driver) = made.map_err(|error| unreachable(address, error))?;
    Ok((Connection { client, life }, spawn("redis.connection", driver)))
}

async fn log_in(
    connection: &Connection,
    address: &Address,
    login: &Login,
    name: &str,
    wanted: Wanted,
) -> Result<(), Failure> {
    let mut commands = Pipeline::new();
    let mut steps = Vec::new();
    if let Some(password) = &login.password {
        commands.cmd("AUTH").arg(login.user.as_deref()).arg(password.expose());
        steps.push(LoginStep::Auth);
    }
    if login.database > 0 {
        commands.cmd("SELECT").arg(login.database);
        steps.push(LoginStep::Select);
    }
    commands.cmd("CLIENT").arg("SETNAME").arg(shown_name(name)).cmd("PING").cmd("ROLE");
    steps.extend([LoginStep::Name, LoginStep::Ping, LoginStep::Role]);
    let sent = connection.ask(&commands).await;
    let replies = sent.map_err(|error| lost(address, &error))?;
    for (step, reply) in steps.iter().zip(&replies) {
        step.check(reply, address, login, wanted)?;
    }
    Ok(())
}

/// What the login asks the server.
#[derive(Debug, Clone, Copy, PartialEq)]
enum LoginStep {
    Auth,
    Select,
    Name,
    Ping,
    Role,
}

impl LoginStep {
    fn check(self, reply: &Value, address: &Address, login: &Login, wanted: Wanted) -> Result<(), Failure> {
        if let (Self::Role, Value::Array(role), Wanted::Master) = (self, reply, wanted)
            && matches!(role.first(), Some(Value::BulkString(role)) if role == b"slave")
        {
            let text = format!("{address} is a replica and takes no writes; looking for the master");
            return Err(Failure::of_sink("redis.readonly", text));
        }
        let Value::ServerError(error) = reply else { return Ok(()) };
        let ErrorReply { code, words } = ErrorReply::of(error);
        let words = login.without_secrets(words);
        let fail = |name, text| Err(Failure::of_sink(name, format!("{address} {text}: {code} {words}")));
        match (self, code) {
            (Self::Auth, _) | (_, "NOAUTH") => fail("redis.auth", format!("refuses {}", login.identity)),
            (_, "LOADING") => fail("redis.loading", "is starting".to_owned()),
            (_, "DENIED") => fail("redis.denied", "lets nobody in from here".to_owned()),
            (Self::Select, _) => fail("redis.denied", format!("refuses database {}", login.database)),
            // Other steps may be refused for rights that delivery does not need.
            _ => Ok(()),
        }
    }
}

/// The name as the server lists it. A server refuses names with spaces.
fn shown_name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_graphic() { c } else { '-' };
    format!("posthaste-{}", name.chars().map(plain).collect::<String>())
}

/// A connection that ended while we logged in.
pub(super) fn lost(address: &Address, error: &RedisError) -> Failure {
    match tls_error(error).filter(|_| address.tls) {
        Some(words) => Failure::of_sink("redis.tls", format!("{address}: no TLS connection: {words}")),
        None => unreachable(address, error),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::topology;
    use super::*;
    use ::redis::cmd;
    use futures_util::poll;
    use std::pin::pin;
    use tokio::io::{AsyncReadExt, DuplexStream};

    /// A connection, and the server's end of it.
    pub(in super::super) async fn connected() -> (Connection, Driver, DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let (address, _) = topology::server(topology::SHAPE, "redis://h:1").expect("an address");
        let made = over(ours, &RedisConfig::new("redis://h:1"), &address).await;
        let (connection, driver) = made.expect("no word is exchanged");
        (connection, driver, theirs)
    }

    pub(in super::super) fn commands(count: usize) -> Pipeline {
        let mut commands = Pipeline::new();
        for number in 0..count {
            commands.cmd("ECHO").arg(number);
        }
        commands
    }

    async fn take(server: &mut DuplexStream, commands: &Pipeline) {
        let mut taken = vec![0; commands.get_packed_pipeline().len()];
        server.read_exact(&mut taken).await.expect("it is sent");
        assert_eq!(taken, commands.get_packed_pipeline());
    }

    /// A proxy that does not know the command repeats what it was given.
    #[test]
    fn a_password_that_the_server_repeats_is_not_shown() {
        let (address, _) = topology::server(topology::SHAPE, "redis://h:1").expect("an address");
        let login = Login {
            user: Some("shop".to_owned()),
            password: Some(crate::Secret::new("hunter2")),
            database: 0,
            identity: "user \"shop\"".to_owned(),
        };
        let words = "-ERR unknown command 'AUTH', with args beginning with: 'shop' 'hunter2'\r\n";
        let reply = ::redis::parse_redis_value(words.as_bytes()).expect("a reply");
        let failure = LoginStep::Auth.check(&reply, &address, &login, Wanted::Master).expect_err("refused");
        assert!(failure.message.contains("unknown command"), "{failure:?}");
        assert!(!failure.message.contains("hunter2"), "{failure:?}");
    }

    #[tokio::test]
    async fn a_request_that_is_dropped_shifts_nobodys_replies_and_an_error_hides_none() {
        let (connection, _driver, mut server) = connected().await;
        let (dropped, kept) = (commands(2), commands(3));
        {
            let mut asked = pin!(connection.ask(&dropped));
            assert!(poll!(asked.as_mut()).is_pending());
            take(&mut server, &dropped).await;
        }
        let answer = async {
            take(&mut server, &kept).await;
            let replies = b"$3\r\n0-1\r\n+OK\r\n$3\r\n1-0\r\n-OOM no memory\r\n:7\r\n";
            server.write_all(replies).await.expect("written");
        };
        let (replies, ()) = tokio::join!(connection.ask(&kept), answer);
        let replies = replies.expect("three replies");
        let [Value::BulkString(id), Value::ServerError(error), Value::Int(7)] = replies.as_slice() else {
            panic!("{replies:?}");
        };
        assert_eq!((id.as_slice(), ErrorReply::of(error).code), (&b"1-0"[..], "OOM"));
    }

    #[tokio::test]
    async fn what_is_no_reply_ends_the_connection_and_everybody_is_told() {
        for last in [&b"+OK\r\n?what\r\n"[..], b"+OK\r\n", b"$9\r\nshort"] {
            let (connection, driver, mut server) = connected().await;
            let (question, other, end) = (commands(2), cmd("PING"), async {
                take(&mut server, &commands(2)).await;
                server.write_all(last).await.expect("written");
                drop(server);
            });
            let (asked, other, ()) = tokio::join!(connection.ask(&question), connection.ask_one(&other), end);
            assert!(asked.is_err() && other.is_err(), "{asked:?} {other:?}");
            driver.await.expect("it has ended");
            assert!(connection.ask(&question).await.is_err());
        }
    }
}
