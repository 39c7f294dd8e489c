//! One connection: HTTP/1.1 by hand, or HTTP/2.

use std::{io, sync::Arc};

use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

use super::{Answer, Desk, Manner, Recorded};

const HEAD_MAX_BYTES: usize = 1 << 20;

/// Who is at the other end.
#[derive(Clone)]
struct Peer {
    number: usize,
    certificate: Option<Bytes>,
}

pub(super) async fn serve(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    number: usize,
    desk: Arc<Desk>,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut client = Peer { number, certificate: None };
    let Some(tls) = tls else { return http1(stream, &client, &desk).await };
    let stream = match tls.accept(stream).into_fallible().await {
        Ok(stream) => stream,
        // Closed with something unread, the connection would be reset, and the alert lost on its way.
        Err((error, mut stream)) => {
            stream.shutdown().await?;
            until_closed(&mut stream).await?;
            return Err(error);
        }
    };
    let session = stream.get_ref().1;
    let shown = session.peer_certificates().and_then(<[_]>::first);
    client.certificate = shown.map(|certificate| Bytes::copy_from_slice(certificate));
    if session.alpn_protocol() == Some(b"h2") {
        return http2(stream, client, desk).await.map_err(io::Error::other);
    }
    http1(stream, &client, &desk).await
}

async fn http1(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    client: &Peer,
    desk: &Arc<Desk>,
) -> io::Result<()> {
    let mut buffer = BytesMut::new();
    while let Some(mut request) = head(&mut stream, &mut buffer).await? {
        let _entered = desk.enter();
        let answer = desk.answer(&request.path);
        if answer.manner == Manner::CloseUnread {
            return Ok(());
        }
        (request.connection, request.client) = (client.number, client.certificate.clone());
        request.body = body(&mut stream, &mut buffer, &request).await?;
        desk.record(request);
        tokio::time::sleep(answer.delay).await;
        match answer.manner {
            Manner::CloseUnanswered => return Ok(()),
            Manner::Silent => return until_closed(&mut stream).await,
            Manner::Garbage => return stream.write_all(b"SSH-2.0-what do you want?\r\n\r\n").await,
            Manner::HalfBody => {
                let whole = encode(&answer);
                return stream.write_all(&whole[..whole.len() - answer.body.len() / 2]).await;
            }
            Manner::Whole | Manner::CloseUnread => stream.write_all(&encode(&answer)).await?,
        }
    }
    Ok(())
}

fn encode(answer: &Answer) -> Vec<u8> {
    let mut out = format!("HTTP/1.1 {} Scripted\r\ncontent-length: {}\r\n", answer.status, answer.body.len());
    for (name, value) in &answer.headers {
        out.push_str(&format!("{name}: {value}\r\n"));
    }
    out.push_str("\r\n");
    let mut out = out.into_bytes();
    out.extend_from_slice(&answer.body);
    out
}

/// The request line and the headers; `None` at the end of the connection.
async fn head(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    buffer: &mut BytesMut,
) -> io::Result<Option<Recorded>> {
    let end = loop {
        if let Some(at) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            break at;
        }
        if buffer.len() > HEAD_MAX_BYTES {
            return Err(bad("the head of a request has no end"));
        }
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
        // Somebody begins TLS here.
        if buffer.first().is_some_and(|byte| !byte.is_ascii_uppercase()) {
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await?;
            return Ok(None);
        }
    };
    let head = buffer.split_to(end + 4);
    let text = String::from_utf8_lossy(&head[..end]).into_owned();
    let mut lines = text.split("\r\n");
    let words: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
    let [method, path, "HTTP/1.1"] = words[..] else { return Err(bad("no request line")) };
    let mut headers = Vec::new();
    for line in lines {
        let (name, value) = line.split_once(':').ok_or_else(|| bad("no header"))?;
        headers.push((name.to_owned(), value.trim().to_owned()));
    }
    Ok(Some(Recorded {
        method: method.to_owned(),
        path: path.to_owned(),
        headers,
        body: Bytes::new(),
        connection: 0,
        version: "HTTP/1.1",
        client: None,
    }))
}

async fn body(
    stream: &mut (impl AsyncRead + Unpin),
    buffer: &mut BytesMut,
    request: &Recorded,
) -> io::Result<Bytes> {
    let length = request.header("content-length").and_then(|text| text.parse().ok());
    // A question has no body.
    let length = length.or((request.method == "GET").then_some(0));
    let length: usize = length.ok_or_else(|| bad("a request without a length"))?;
    while buffer.len() < length {
        if stream.read_buf(buffer).await? == 0 {
            return Err(bad("the body breaks off"));
        }
    }
    Ok(buffer.split_to(length).freeze())
}

/// Says nothing, and notices when the client has had enough.
async fn until_closed(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
    let mut rest = [0; 1_024];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}

/// Each request is handled by itself. Of the manners only silence has a meaning here.
async fn http2(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    client: Peer,
    desk: Arc<Desk>,
) -> Result<(), h2::Error> {
    let mut connection = h2::server::handshake(stream).await?;
    let mut requests = JoinSet::new();
    while let Some(accepted) = connection.accept().await {
        let (request, mut respond) = accepted?;
        let (desk, client) = (Arc::clone(&desk), client.clone());
        requests.spawn(async move {
            let _entered = desk.enter();
            let (parts, mut incoming) = request.into_parts();
            let mut body = BytesMut::new();
            while let Some(chunk) = incoming.data().await {
                let chunk = chunk?;
                let _ = incoming.flow_control().release_capacity(chunk.len());
                body.extend_from_slice(&chunk);
            }
            let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
            let path = parts.uri.path().to_owned();
            let answer = desk.answer(&path);
            desk.record(Recorded {
                method: parts.method.to_string(),
                path,
                headers: parts.headers.iter().map(|(n, v)| (n.to_string(), text(v.as_bytes()))).collect(),
                body: body.freeze(),
                connection: client.number,
                version: "HTTP/2",
                client: client.certificate,
            });
            tokio::time::sleep(answer.delay).await;
            if answer.manner == Manner::Silent {
                std::future::pending::<()>().await;
            }
            let mut response = http::Response::builder().status(answer.status);
            for (name, value) in &answer.headers {
                response = response.header(name, value);
            }
            let response = response.body(()).unwrap_or_default();
            let mut sending = respond.send_response(response, answer.body.is_empty())?;
            if !answer.body.is_empty() {
                sending.send_data(answer.body, true)?;
            }
            Ok::<_, h2::Error>(())
        });
        while requests.try_join_next().is_some() {}
    }
    Ok(())
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
