//! Reading an answer of HTTP/1.1: its head, and where its body ends.
//!
//! Pure: bytes in, meaning out. `httparse` reads lines, the parser that hyper is built on; what is decided here is the
//! framing, by RFC 9112, section 6.3, and always for the careful side: a connection is used again only if there is
//! exactly one way to tell where the answer ends, and a length that contradicts itself is no answer at all.

use httparse::{EMPTY_HEADER, Header, Status};
use hyper::StatusCode;

/// Headers of an answer. More of them are no answer.
const HEADERS_MAX: usize = 100;
/// Headers of a trailer.
const TRAILERS_MAX: usize = 32;

/// Where a body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    /// After so many bytes.
    Length(u64),
    /// After the last chunk.
    Chunked,
    /// With the connection.
    Close,
}

/// The head of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) status: StatusCode,
    pub(super) retry_after: Option<String>,
    pub(super) framing: Framing,
    /// Whether the connection may be used again after the body.
    pub(super) keeps: bool,
}

/// What is wrong with an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoAnswer {
    #[error("the answer is not HTTP: {0}")]
    Head(#[from] httparse::Error),
    #[error("the answer is not HTTP: bad status")]
    Status,
    #[error("the answer contradicts itself about its length")]
    Length,
}

/// The head at the beginning of `bytes` and its length; `None` while it is not complete.
pub(super) fn head(bytes: &[u8]) -> Result<Option<(Head, usize)>, NoAnswer> {
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let Status::Complete(length) = response.parse(bytes)? else { return Ok(None) };
    let status = response.code.and_then(|code| StatusCode::from_u16(code).ok()).ok_or(NoAnswer::Status)?;
    let mut fields = Fields { keeps: response.version == Some(1), ..Fields::default() };
    response.headers.iter().try_for_each(|header| fields.read(header))?;
    let framing = fields.framing(status);
    let keeps = fields.keeps && framing != Framing::Close && status != StatusCode::SWITCHING_PROTOCOLS;
    Ok(Some((Head { status, retry_after: fields.retry_after, framing, keeps }, length)))
}

/// The fields that mean something here.
#[derive(Default)]
struct Fields {
    keeps: bool,
    length: Option<u64>,
    /// The last transfer coding.
    coding: Option<String>,
    retry_after: Option<String>,
}

impl Fields {
    fn read(&mut self, header: &Header<'_>) -> Result<(), NoAnswer> {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        let text = || std::str::from_utf8(header.value).unwrap_or_default().trim();
        if is("content-length") {
            return text().split(',').try_for_each(|value| self.length(value.trim()));
        } else if is("transfer-encoding") {
            self.coding = text().rsplit(',').next().map(|coding| coding.trim().to_ascii_lowercase());
        } else if is("connection") {
            self.keeps &= !text().split(',').any(|token| token.trim().eq_ignore_ascii_case("close"));
        } else if is("retry-after") && self.retry_after.is_none() {
            self.retry_after = Some(text().to_owned());
        }
        Ok(())
    }

    fn length(&mut self, value: &str) -> Result<(), NoAnswer> {
        let is_plain = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
        let length = value.parse().ok().filter(|_| is_plain).ok_or(NoAnswer::Length)?;
        if self.length.is_some_and(|before| before != length) {
            return Err(NoAnswer::Length);
        }
        self.length = Some(length);
        Ok(())
    }

    fn framing(&mut self, status: StatusCode) -> Framing {
        if status.is_informational() || matches!(status.as_u16(), 204 | 304) {
            // A body that must not be there may come all the same.
            self.keeps &= self.coding.is_none() && self.length.unwrap_or_default() == 0;
            return Framing::Length(0);
        }
        match (self.coding.as_deref(), self.length) {
            // Two ways to tell the end: the first one counts, and nobody goes on after it.
            (Some("chunked"), length) => {
                self.keeps &= length.is_none();
                Framing::Chunked
            }
            (Some(_), _) | (None, None) => Framing::Close,
            (None, Some(length)) => Framing::Length(length),
        }
    }
}

/// What is there of a body.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// All of it, in so many bytes.
    Whole(usize),
    More,
    /// It makes no sense.
    Broken,
}

/// Reads the body at the beginning of `bytes` into `data`, as far as it has come.
pub(super) fn body(bytes: &[u8], framing: Framing, data: &mut Vec<u8>) -> Part {
    match framing {
        Framing::Length(length) => {
            let whole = usize::try_from(length).ok().filter(|length| *length <= bytes.len());
            data.extend_from_slice(&bytes[..whole.unwrap_or(bytes.len())]);
            whole.map_or(Part::More, Part::Whole)
        }
        Framing::Close => {
            data.extend_from_slice(bytes);
            Part::More
        }
        Framing::Chunked => chunks(bytes, data),
    }
}

fn chunks(bytes: &[u8], data: &mut Vec<u8>) -> Part {
    let mut at = 0;
    loop {
        let (start, size) = match httparse::parse_chunk_size(&bytes[at..]) {
            Ok(Status::Complete((used, size))) => (at + used, size),
            Ok(Status::Partial) => return Part::More,
            Err(_) => return Part::Broken,
        };
        if size == 0 {
            return trailers(bytes, start);
        }
        let rest = &bytes[start..];
        let Some(size) = usize::try_from(size)
            .ok()
            .filter(|size| size.checked_add(2).is_some_and(|end| end <= rest.len()))
        else {
            data.extend_from_slice(&rest[..rest.len().min(usize::try_from(size).unwrap_or(usize::MAX))]);
            return Part::More;
        };
        data.extend_from_slice(&rest[..size]);
        if &rest[size..size + 2] != b"\r\n" {
            return Part::Broken;
        }
        at = start + size + 2;
    }
}

fn trailers(bytes: &[u8], start: usize) -> Part {
    match httparse::parse_headers(&bytes[start..], &mut [EMPTY_HEADER; TRAILERS_MAX]) {
        Ok(Status::Complete((used, _))) => Part::Whole(start + used),
        Ok(Status::Partial) => Part::More,
        Err(_) => Part::Broken,
    }
}

#[cfg(test)]
mod tests;
