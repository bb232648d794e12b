"""Columns of users that name a person or how to reach one: no prompt needs them."""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.column_facts import Column
from pipeline.table_words import is_called_only, mentions, words_of

_LISTS = {
    "stems":  # wherever they stand in a name without its blanks
    "phone telefon telephone handynummer passport passeport pasaporte reisepass ausweis email "
    "address adress anschrift direccion domicil geburt birth naissance nacimiento whatsapp wechat "
    "surname nachname vorname prenom apellido nickname username socialsecurity sozialversicherung "
    "securitesociale seguridadsocial nationalid idcard idnumber identity identite identidad "
    "телефон паспорт адрес рожд фамили отчеств снилс почт мобильн "
    "姓名 名字 昵称 暱稱 用户名 手机 手機 电话 電話 联系方式 身份证 身份證 证件 證件 护照 護照 "
    "地址 住址 邮箱 郵箱 邮件 郵件 微信 生日 出生 社保 银行卡 驾照 氏名 住所 携帯 メール "
    "パスポート 生年月日 誕生日 マイナンバー ニックネーム qq",
    "words":  # of a name
    "tel mobile mobil cell cellphone handy fax portable movil celular mail courriel correo contact "
    "kontakt ssn dni nie nif curp cpf iban dob street strasse straße rue calle wx skype "
    "telegram messenger firstname lastname fullname forename фио",
    "name": "name names nom nombre имя",
    "whose":  # a town has a name too
    "first last full middle given family famille familia completo display login real legal maiden "
    "nick de la du le",
    "harmless":  # what is told of many: the town of an address, the make of a phone
    "city town country region state province county district stadt land ort ville pays ciudad pais "
    "место город страна год place year jahr annee model brand os platform type domain carrier "
    "verified 城市 国家 國家 省份 地区 地區 型号 品牌 系统 运营商 年份 类型 出生地 "
    "birthplace geburtsort gender",
}
_PARTED = {kind: frozenset(words.split()) for kind, words in _LISTS.items()}
_VALUES = "|".join(  # phones, e-mail, identity numbers
    (
        r"\+[0-9][0-9 ()./-]{7,20}",
        r"1[3-9][0-9]{9}",
        r"\(?0[0-9]{1,4}\)?[ /-]?[0-9][0-9 -]{5,12}",
        r"\(?[0-9]{3}\)?[ .-] ?[0-9]{3}[ .-][0-9]{4}",
        r"[0-9]{17}[0-9Xx]",
        r"[0-9]{3}-[0-9]{2}-[0-9]{4}",
        r"[^@\s]+@[^@\s]+\.[A-Za-z]+",
    )
)
_SOME = 0.2  # of the values; a column may hold whatever reaches a person


def why_personal(column: Column) -> str:
    """What makes a column of users personal; "" if nothing does.

    A town, an age group or a faculty is of many, and a flag tells nobody apart.
    """
    if column.is_flag or set(column.values[:3].to_pylist()) <= {"0", "1"}:
        return ""
    if _is_called_personal(column.name):
        return "by its name it may be personal"
    if _share(column.values) > _SOME:
        return "values like phones, mail or identity numbers, so it may be personal"
    return ""


def _is_called_personal(name: str) -> bool:
    own, harmless = set(words_of(name)), _PARTED["harmless"]
    if is_called_only(name, _PARTED["name"], _PARTED["whose"]):
        return True
    if not mentions(name, _PARTED["stems"]) and own.isdisjoint(_PARTED["words"]):
        return False
    return own.isdisjoint(harmless) and not mentions(name, filter(_is_unspaced, harmless))


def _is_unspaced(word: str) -> bool:
    """Whether it is of a writing without blanks between words."""
    return word[0] >= "\u2e80"


def _share(values: pa.Array) -> float:
    found = pc.match_substring_regex(pc.utf8_trim_whitespace(values), f"^({_VALUES})$")
    return pc.mean(found.cast(pa.int8())).as_py() or 0.0
