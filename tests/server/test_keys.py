"""Keys are found by what a client shows, follow their file, and are asked for wherever others can reach the service."""

import hashlib
import logging
import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from archerfish.errors import ConfigError
from archerfish.server import keys as keys_module
from archerfish.server.keys import Key, Keys, check_binding


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def key_file(directory: Path, text: str, *, name: str = "keys.toml") -> Path:
    path = directory / name
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    return path


def table(name: str, secret: str, more: str = "") -> str:
    return f'[[key]]\nname = "{name}"\nkey = "{secret}"\n{more}\n'


def shown(keys: Keys, secret: str) -> str | None:
    found = keys.find(f"Bearer {secret}")
    return None if found is None else found.name


# -- what a client shows ----------------------------------------------------------------------------------------------


def test_without_keys_nobody_is_asked_for_one() -> None:
    keys = Keys.load((), None)
    assert not keys
    assert keys.find("Bearer anything") is None


def test_the_key_of_a_flag_is_found_in_either_header() -> None:
    keys = Keys.load(("sk-1",), None)
    assert keys
    for found in (
        keys.find("Bearer sk-1"),
        keys.find("bearer   sk-1 "),
        keys.find(x_api_key="sk-1"),
        keys.find("Bearer wrong", "sk-1"),
        keys.find("Basic sk-1", "sk-1"),
        keys.find(None, " sk-1"),
    ):
        assert found == Key(name="default")


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer ", "sk-1", "Basic sk-1", "Bearer sk-", "Bearer sk-11", "Bearer SK-1", "Bearersk-1"],
)
@pytest.mark.parametrize("x_api_key", [None, "", " ", "wrong"])
def test_nothing_else_is(authorization: str | None, x_api_key: str | None) -> None:
    assert Keys.load(("sk-1",), None).find(authorization, x_api_key) is None


@example(secret="\ud800")
@example(secret="sk-ø租")
@given(secret=st.text())
def test_whatever_is_shown_is_an_answer_and_never_an_error(secret: str) -> None:
    keys = Keys.load(("sk-1",), None)
    for found in (keys.find(secret), keys.find(f"Bearer {secret}"), keys.find(None, secret)):
        assert found is None or secret.strip().removeprefix("Bearer ").strip() == "sk-1"


def test_each_key_of_a_file_is_found_with_its_limits(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"sk-b").hexdigest()
    path = key_file(
        tmp_path,
        table("alice", "sk-a", "requests_per_minute = 60\ntokens_per_minute = 1000\nmin_priority = -3")
        + f'[[key]]\nname = "bob"\nsha256 = "{digest.upper()}"\n',
    )
    keys = Keys.load(("sk-flag",), path)
    limits = {"requests_per_minute": 60, "tokens_per_minute": 1000, "min_priority": -3}
    assert keys.find("Bearer sk-a") == Key(name="alice", **limits)
    assert keys.find("Bearer sk-b") == Key(name="bob", min_priority=0), "others are not passed unless a file says so"
    assert keys.find("Bearer sk-flag") == Key(name="default")
    assert keys.find(f"Bearer {digest}") is None, "the digest is not the key"


def test_the_example_of_the_documentation_works_and_every_field_is_explained(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    section = text.partition("### The key file")[2].partition("\n## ")[0]
    path = tmp_path / "keys.toml"
    path.write_text(section.partition("```toml\n")[2].partition("```")[0])
    path.chmod(0o600)
    keys = Keys.load((), path)
    alice, operator = keys.find("Bearer sk-alice"), keys.find("Bearer sk-c39aa4d0f2e6")
    assert alice is not None and (alice.name, alice.cache_group, alice.min_priority) == ("alice", "team", -5)
    assert operator is not None and operator.admin
    table = section.partition("| field | meaning |")[2]
    for field in keys_module._FIELDS:
        assert f"`{field}`" in table
        assert f"\n{field} = " in section, "it is in the example, too"


def test_every_key_is_compared_whichever_is_the_right_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = Keys.load((), key_file(tmp_path, "".join(table(f"user {n}", f"sk-{n}") for n in range(5))))
    compared = []
    compare = keys_module.hmac.compare_digest

    def note(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return compare(one, other)

    monkeypatch.setattr(keys_module.hmac, "compare_digest", note)
    for secret, name in (("sk-0", "user 0"), ("sk-4", "user 4"), ("wrong", None)):
        compared.clear()
        assert shown(keys, secret) == name
        assert compared == [(32, 32)] * 5


# -- a file that changes ----------------------------------------------------------------------------------------------


def test_a_file_is_read_again_when_it_changes_but_looked_at_once_a_second(tmp_path: Path) -> None:
    clock = Clock()
    path = key_file(tmp_path, table("alice", "sk-old"))
    keys = Keys.load((), path, clock)
    key_file(tmp_path, table("alice", "sk-brand-new"))
    clock.now = 0.9
    assert (shown(keys, "sk-old"), shown(keys, "sk-brand-new")) == ("alice", None)
    clock.now = 1.0
    assert (shown(keys, "sk-old"), shown(keys, "sk-brand-new")) == (None, "alice")


@pytest.mark.parametrize("difference", ["time", "inode"])
def test_a_new_version_of_the_same_size_is_noticed(tmp_path: Path, difference: str) -> None:
    clock = Clock()
    path = key_file(tmp_path, table("alice", "sk-1"))
    os.utime(path, ns=(10**18, 10**18))
    keys = Keys.load((), path, clock)
    if difference == "time":
        key_file(tmp_path, table("alice", "sk-2"))
        os.utime(path, ns=(10**18, 10**18 + 1))
    else:
        other = key_file(tmp_path, table("alice", "sk-2"), name="other.toml")
        os.utime(other, ns=(10**18, 10**18))
        other.replace(path)
    clock.now = 1.0
    assert shown(keys, "sk-2") == "alice"


def test_a_file_that_has_not_changed_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    keys = Keys.load((), key_file(tmp_path, table("alice", "sk-1")), clock)
    monkeypatch.setattr(keys_module, "_parse", lambda *_: pytest.fail("read again"))
    for clock.now in range(1, 20):
        assert shown(keys, "sk-1") == "alice"


@pytest.mark.parametrize("trouble", ["not TOML [", table("alice", ""), "", "gone", "a directory"])
def test_a_broken_new_version_keeps_the_old_keys_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, trouble: str
) -> None:
    clock = Clock()
    path = key_file(tmp_path, table("alice", "sk-1"))
    keys = Keys.load((), path, clock)
    if trouble in ("gone", "a directory"):
        path.unlink()
        if trouble == "a directory":
            path.mkdir()
    else:
        key_file(tmp_path, trouble)
    with caplog.at_level(logging.INFO, "archerfish"):
        for clock.now in range(1, 10):
            assert shown(keys, "sk-1") == "alice"
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert str(path) in record.message and "stay in force" in record.message and "\n" not in record.message
        caplog.clear()
        if trouble == "a directory":
            path.rmdir()
        key_file(tmp_path, table("alice", "sk-1") + table("bob", "sk-2"))
        clock.now += 1
        assert shown(keys, "sk-2") == "bob"
        assert [record.levelno for record in caplog.records] == [logging.INFO]


def test_a_key_that_was_taken_out_is_refused(tmp_path: Path) -> None:
    clock = Clock()
    keys = Keys.load(("sk-flag",), key_file(tmp_path, table("alice", "sk-1") + table("bob", "sk-2")), clock)
    key_file(tmp_path, table("alice", "sk-1"))
    clock.now = 5.0
    assert (shown(keys, "sk-1"), shown(keys, "sk-2"), shown(keys, "sk-flag")) == ("alice", None, "default")


# -- what a file may not say ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "names no keys"),
        ("key = []", "names no keys"),
        ('[key]\nname = "a"\nkey = "b"', r"\[\[key\]\]"),
        ('name = "a"', "'name', which is unknown"),
        ("[[key]", "not valid TOML"),
        ("a = " + "[" * 5000, "not valid TOML"),
        (table("a", "sk-1") + table("a", "sk-2"), "key 2: the name 'a' is already taken"),
        (table("default", "sk-1"), "'default' is already taken"),
        (table("a", "sk-1") + table("b", "sk-1"), "'a' and 'b' have the same key"),
        (table("a", "sk-flag"), "'default' and 'a' have the same key"),
        (table("a", ""), "non-empty"),
        (table("a", "two words"), "cannot be sent in a header"),
        (table("a", "schlüssel"), "cannot be sent in a header"),
        ('[[key]]\nkey = "sk-1"', "needs a name"),
        (table("", "sk-1"), "needs a name"),
        (table("a\\nb", "sk-1"), "needs a name"),
        ('[[key]]\nname = "a"', "either key or sha256"),
        (table("a", "sk-1", f'sha256 = "{"0" * 64}"'), "either key or sha256"),
        ('[[key]]\nname = "a"\nsha256 = "abc"', "64 hexadecimal digits"),
        (f'[[key]]\nname = "a"\nsha256 = "{"x" * 64}"', "64 hexadecimal digits"),
        (f'[[key]]\nname = "a"\nsha256 = "{hashlib.sha256(b"").hexdigest()}"', "an empty key"),
        ('[[key]]\nname = "a"\nkey = 5', "non-empty string"),
        (table("a", "sk-1", "request_per_minute = 5"), "'request_per_minute' is not a field.*requests_per_minute"),
        (table("a", "sk-1", "requests_per_minute = 0"), "at least 1"),
        (table("a", "sk-1", "tokens_per_minute = 1.5"), "whole number"),
        (table("a", "sk-1", "tokens_per_minute = true"), "whole number"),
        (table("a", "sk-1", "batch_requests_per_minute = 0"), "batch_requests_per_minute = 0 must be .* at least 1"),
        (table("a", "sk-1", "batch_tokens_per_minute = 'many'"), "batch_tokens_per_minute = 'many' must be"),
        (table("a", "sk-1", "min_priority = -0.5"), "min_priority = -0.5 must be a whole number; lower goes first"),
        (table("a", "sk-1", "min_priority = false"), "whole number"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    path = key_file(tmp_path, text)
    with pytest.raises(ConfigError, match=complaint) as refusal:
        Keys.load(("sk-flag",), path)
    assert str(path) in str(refusal.value)
    assert "sk-" not in str(refusal.value), "a secret is told"


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the key file .*absent\.toml: No such file"):
        Keys.load((), tmp_path / "absent.toml")
    (tmp_path / "latin").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        Keys.load((), tmp_path / "latin")


def test_keys_of_a_flag_are_tenants_of_their_own() -> None:
    keys = Keys.load(("sk-1", "sk-2", "sk-1", "sk-3"), None)
    assert [shown(keys, f"sk-{number}") for number in (1, 2, 3)] == ["default", "default-2", "default-3"]


def test_only_keys_of_one_group_share_cached_prefixes(tmp_path: Path) -> None:
    text = table("a", "sk-a") + table("b", "sk-b", 'cache_group = "team"') + table("c", "sk-c", 'cache_group = "team"')
    text += table("team", "sk-d") + table("key a", "sk-e")
    keys = Keys.load((), key_file(tmp_path, text))
    salts = []
    for one in "abcde":
        key = keys.find(f"Bearer sk-{one}")
        assert key is not None
        salts += [(key.cache_salt(given), "b or c" if one in "bc" else one, given) for given in ("", "x")]
    assert len({salt for salt, _, _ in salts}) == len({(group, given) for _, group, given in salts})


@pytest.mark.parametrize(
    ("more", "said"), [("admin = 1", "admin = 1 must be true or false"), ('cache_group = ""', "cache_group = ''")]
)
def test_groups_and_admins_are_checked(tmp_path: Path, more: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Keys.load((), key_file(tmp_path, table("a", "sk-a", more)))


@pytest.mark.parametrize("api_key", ["", "two words", "schlüssel", "line\nbreak"])
def test_a_flag_that_is_no_key_is_refused(api_key: str) -> None:
    with pytest.raises(ConfigError, match="--api-key"):
        Keys.load((api_key,), None)


@pytest.mark.skipif(os.name != "posix", reason="there are no such modes")
@pytest.mark.parametrize(("mode", "warns"), [(0o644, True), (0o604, True), (0o640, False), (0o600, False)])
def test_a_file_that_everyone_can_read_gets_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warns: bool
) -> None:
    path = key_file(tmp_path, table("alice", "sk-1"))
    path.chmod(mode)
    with caplog.at_level(logging.WARNING, "archerfish"):
        Keys.load((), path)
    assert [str(path) in record.message for record in caplog.records] == [True] * warns


def test_a_key_tells_no_secret(tmp_path: Path) -> None:
    keys = Keys.load((), key_file(tmp_path, table("alice", "sk-1")))
    assert "sk-1" not in repr(keys.find("Bearer sk-1"))
    assert hashlib.sha256(b"sk-1").hexdigest() not in repr(keys.find("Bearer sk-1"))


def test_whose_batch_it_is_and_how_fast_its_lines_may_come(tmp_path: Path) -> None:
    online = "requests_per_minute = 60\ntokens_per_minute = 1000\n"
    more = "min_priority = -3\nbatch_requests_per_minute = 7\nbatch_tokens_per_minute = 70\n"
    path = key_file(
        tmp_path, table("alice", "sk-a", online) + table("bob", "sk-b", online + more) + table("carol", "sk-c")
    )
    keys = Keys.load(("sk-flag",), path)
    alice, bob, carol = (keys.owner(name) for name in ("alice", "bob", "carol"))
    assert (alice.requests_per_minute, alice.tokens_per_minute) == (60, 1000), "as online"
    assert (bob.requests_per_minute, bob.tokens_per_minute, bob.min_priority) == (7, 70, -3)
    assert (carol.requests_per_minute, carol.tokens_per_minute) == (None, None)
    assert alice.is_batch and bob.is_batch and not keys.find("Bearer sk-a").is_batch  # type: ignore[union-attr]
    assert keys.owner("default") == Key(name="default", is_batch=True)
    assert keys.owner("gone") == Key(name="gone", min_priority=0, is_batch=True)
    assert Keys.load((), None).owner("") == Key(name="", is_batch=True)


# -- where the service listens ----------------------------------------------------------------------------------------

OWN = ["127.0.0.1", "127.8.9.10", "::1", "[::1]", "localhost", "LocalHost", "::ffff:127.0.0.1"]
REACHABLE = ["0.0.0.0", "::", "", "192.168.1.5", "10.0.0.1", "example.com", "localhost.example.com", "::ffff:10.0.0.1"]


@pytest.mark.parametrize("host", OWN)
def test_this_machine_needs_no_keys(host: str) -> None:
    check_binding(host, Keys.load((), None), allow_anonymous=False)


@pytest.mark.parametrize("host", REACHABLE)
def test_other_machines_need_keys_or_permission(host: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--api-key or --key-file.*--allow-anonymous"):
        check_binding(host, Keys.load((), None), allow_anonymous=False)
    check_binding(host, Keys.load((), None), allow_anonymous=True)
    check_binding(host, Keys.load(("sk-1",), None), allow_anonymous=False)
    check_binding(host, Keys.load((), key_file(tmp_path, table("a", "b"))), allow_anonymous=False)
