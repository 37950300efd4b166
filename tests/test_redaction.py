"""Secrets do not survive redaction, in whatever form a message carries them; other text does."""

from __future__ import annotations

import json
import re
import string
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltalakedb.redaction import MASK, redact

#: digits of which no form below has four in a row, so that four in the result are a leak
secrets = st.text("89", min_size=12, max_size=40)
#: a secret with anything in it that a quoted text can hold
awkward = st.lists(
    st.one_of(secrets, st.sampled_from(list("\"'\\ ,;&})]@:/=\n\t%{"))), min_size=1, max_size=6
).map("".join)
names = st.sampled_from(
    [
        "password",
        "PASSWORD",
        "db_password",
        "passwd",
        "passphrase",
        "pwd",
        "PGPASSWORD",
        "sslpassword",
        "secret",
        "client_secret",
        "secret-key",
        "fs.s3a.secret.key",
        "aws_secret_access_key",
        "access_key",
        "AccessKey",
        "account_key",
        "AccountKey",
        "api_key",
        "x-api-key",
        "private_key",
        "token",
        "sas_token",
        "x-amz-security-token",
        "X-Amz-Signature",
        "X-Amz-Credential",
        "sig",
        "Authorization",
        "access_token",
    ]
)


def has_secret(text: str) -> bool:
    return re.search("[89]{4}", text) is not None


@given(
    secrets, st.sampled_from(["postgresql://", "s3://", "deltasql://postgres/", "see https://h/a,http://"])
)
def test_a_password_before_a_host_is_masked(secret: str, start: str) -> None:
    for text in (f"{start}ada:{secret}@db/lake", f"{start}ada:{secret}@{secret}@db", f"{start}:{secret}@db"):
        shown = redact(f"connection to {text} failed")
        assert not has_secret(shown)
        assert MASK in shown
        assert shown.startswith("connection to ")
        assert shown.endswith(" failed")


@given(secrets, names)
def test_a_plain_value_is_masked(secret: str, name: str) -> None:
    for text in (
        f"{name}={secret}",
        f"{name} = {secret}",
        f"{name}: {secret}",
        f"?a=1&{name}={secret}&b=2",
        f"host=db {name}={secret} user=ada",
        f"Server=db;{name}={secret};User=ada",
        f"({name}={secret})",
    ):
        assert not has_secret(redact(text)), text


@given(awkward, names)
def test_a_quoted_value_is_masked_to_its_end(secret: str, name: str) -> None:
    document = json.dumps({"user": "ada", name: secret, "port": 5432})
    for text in (
        document,
        json.dumps({"body": document}),
        repr({"user": "ada", name: secret}),
        repr({name: secret.encode()}),
        f"{name}={secret!r}",
        f"{name}='{secret.replace(chr(39), chr(39) * 2)}' user=ada".replace("\\", ""),
        f"{name}={quote(secret, safe='')}&x=1",
    ):
        assert not has_secret(redact(text)), text
        # cut anywhere, as a log with a limit does, the rest of the secret stays hidden too
        cut = redact(text[: len(text) * 2 // 3])
        assert not has_secret(cut), text


@given(st.text(string.ascii_letters + string.digits + "-._~+/=", min_size=16, max_size=60))
def test_a_bearer_token_is_masked(token: str) -> None:
    assert token not in redact(f"Authorization: Bearer {token}")
    assert token not in redact(f"sent 'bearer {token}'")


@pytest.mark.parametrize(
    "text",
    [
        "GET /commit?path=file%3A/lake/orders/_delta_log/00000000000000000001.json HTTP/1.1",
        "the address deltasql://sqlite//srv/lake/meta.db?table=sales.orders",
        "abfss://container@account.dfs.core.windows.net/orders",
        "user ada@example.com, port 5432: refused",
        "the token is missing or wrong",
        "a passing remark, tokens of 16 letters",
        "",
    ],
)
def test_other_text_stays_as_it_is(text: str) -> None:
    assert redact(text) == text


@given(st.text(max_size=300))
def test_any_text_is_redacted_the_same_twice(text: str) -> None:
    once = redact(text)
    assert redact(once) == once
