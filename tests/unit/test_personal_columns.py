"""What a table of users has about persons goes into no prompt; what is told of many does."""

import pyarrow as pa
import pytest

from pipeline.personal_columns import why_personal
from pipeline.table_guess import guess_tables
from pipeline.table_heads import Head
from pipeline.table_links import Table
from pipeline.table_roles import find_roles


def column_of(name, values):
    table = pa.table({name: pa.array([str(value) for value in values])})
    return Table.of(Head("users.csv", table, None, True)).columns[name]


@pytest.mark.parametrize(
    "name",
    [
        *("name", "first_name", "lastName", "User Name", "customer_name", "nickname", "surname"),
        *("phone", "phone_number", "mobile", "address", "home_address", "passport", "passport_no"),
        *(
            "ssn",
            "social_security_number",
            "national_id",
            "e-mail",
            "Email",
            "WeChat",
            "QQ",
            "qq号",
        ),
        *("birth_date", "birthday", "date_of_birth", "dob", "contact"),
        *(
            "姓名",
            "读者姓名",
            "手机",
            "手机号",
            "联系电话",
            "身份证号",
            "护照号",
            "家庭住址",
            "邮箱",
        ),
        *("微信号", "昵称", "出生日期", "生日"),
        *(
            "Name",
            "Vorname",
            "Telefonnummer",
            "Anschrift",
            "Straße",
            "Geburtsdatum",
            "Ausweisnummer",
        ),
        *("nom", "prénom", "nom de famille", "téléphone", "adresse", "courriel", "passeport"),
        *("date de naissance", "nombre", "apellidos", "teléfono", "dirección", "correo", "DNI"),
        *("Имя", "ФИО", "Фамилия", "Телефон", "Адрес", "паспорт", "дата рождения", "эл. почта"),
        *("氏名", "電話番号", "住所", "メールアドレス", "生年月日", "携帯"),
    ],
)
def test_what_names_or_reaches_a_person_is_personal(name):
    assert "may be personal" in why_personal(column_of(name, ["aa", "bb", "cc"]))


@pytest.mark.parametrize(
    "name",
    [
        *(
            "town",
            "city",
            "city_name",
            "faculty name",
            "school_name",
            "occupation",
            "gender",
            "age",
        ),
        *(
            "gender_identity",
            "age_group",
            "birth_year",
            "birthplace",
            "address_city",
            "phone_model",
            "email_domain",
        ),
        *("院系", "院系名称", "城市", "职业", "性别", "年龄段", "出生年份", "手机型号", "专业"),
        *("Beruf", "Stadt", "ville", "profession", "ciudad", "город", "пол", "職業", "年代"),
    ],
)
def test_what_is_told_of_many_is_not(name):
    assert why_personal(column_of(name, ["aa", "bb", "cc"])) == ""


@pytest.mark.parametrize(
    ("values", "is_personal"),
    [
        (["13812345678", "15900001111"], True),
        (["+49 30 1234567", "+1 (555) 123-4567"], True),
        (["030/1234567", "0171 2345678"], True),
        (["(555) 123-4567", "555-123-4567"], True),
        (["11010119900307123X", "440101198802021234"], True),
        (["ann@example.org", "bob@example.org"], True),
        (["123-45-6789", "none", "none of these"], True),
        (["18-24", "25-34", "55+"], False),
        (["52000", "128000", "1000000"], False),
        (["02139", "10115"], False),
        (["2024-05-31", "2023-01-02"], False),
    ],
)
def test_values_tell_too(values, is_personal):
    assert ("may be personal" in why_personal(column_of("x", values))) == is_personal


def test_a_flag_is_not_personal():
    assert why_personal(column_of("email", ["True", "False"])) == ""
    assert why_personal(column_of("phone", [1, 0])) == ""


def test_users_lose_their_names_and_items_keep_their_makers():
    def table(name, columns):
        return Table.of(Head(name, pa.table(columns), None, True))

    few = [f"name {n % 6}" for n in range(30)]
    users = {"user_id": [f"u{n}" for n in range(30)], "name": few, "town": few}
    items = {"item_id": [f"i{n}" for n in range(30)], "author": few, "address": few}
    items["title"] = [f"The {n}th" for n in range(30)]
    log = {
        "user_id": users["user_id"] * 3,
        "item_id": [*items["item_id"][7:], *items["item_id"][:7]] * 3,
        "time": list(range(1_500_000_000, 1_500_000_090)),
    }
    tables = [table("users.csv", users), table("items.csv", items), table("log.csv", log)]
    found = guess_tables(find_roles(tables))
    assert [one.column for one in found.user_attributes.kept] == ["town"]
    assert "may be personal" in found.user_attributes.left_out[0].seen
    assert {"author", "address"} <= {one.column for one in found.item_attributes.kept}
